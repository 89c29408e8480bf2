"""One HAProxy backend for each pool (three where its capacity types are filled in order)."""

from collections.abc import Iterable
from datetime import timedelta

from serving.router import engine_key
from serving.router.body_patterns import QUESTION, START, TOKENS, taken
from serving.router.error_pages import answer, busy, quoted
from serving.router.policy import Balance, Placement, PoolPolicy, RouterPolicy
from serving.router.rules import REASON
from serving.router.settings import ACTIVATOR_SOCKET, RouterSettings, written
from serving.router.topology import (
    AGENT_CHECK_PORT,
    ENGINE_PORT,
    PoolEntry,
    Replica,
    backend_of,
    capacity_backends,
)

BALANCE_FACTOR = 250
"""Percent of the mean load that a warm replica may take. With 150 half of a hot prompt leaves the replica that knows
it; with 300 a pool of three has no bound at all."""
PREFIX_BYTES = 512
"""Of the system prompt and of the first question, each: what a prefix cache may know."""
READ_BYTES = 704
"""Of the body, for the text of the first message: it begins soon, and its first `PREFIX_BYTES` count.
Each byte of it costs."""
SHORTEST_PREFIX = 200
"""A shorter start of a prompt is not worth a warm cache; such requests are spread evenly."""
IDLE_LOOK = timedelta(seconds=1)
"""Between two looks for idle connections to an engine; each one ends half of those that are not needed."""
PROBE_AFTER = timedelta(seconds=5)
"""Of silence on a connection to an engine the kernel asks whether the machine is there at all."""
PROBE_EVERY = timedelta(seconds=2)
PROBES = 3
"""Without an answer, and the connection has ended; a machine that is busy answers, for its kernel does."""
SHUTTING_DOWN = "cannot schedule new futures after shutdown"
"""In vLLM's answer 500 to a request that came after its SIGTERM. HAProxy can try again by status alone, and another
500 may come from a request that ran, so this one is passed on as 503."""
ACTIVATOR = "activator"
"""The name of the server that holds requests while a pool has no replica."""


def sections(pool: PoolEntry, replicas: Iterable[Replica], policy: RouterPolicy, settings: RouterSettings) -> str:
    """The backends of a pool."""
    rules = policy.pool(pool.name)
    known = tuple(replicas)
    if rules.placement is Placement.SPREAD:
        return _backend(backend_of(pool.name), pool, known, rules, settings)
    return "\n".join(
        _backend(name, pool, [r for r in known if backend_for(r, policy) == name], rules, settings)
        for name in capacity_backends(pool.name)
    )


def backend_for(replica: Replica, policy: RouterPolicy) -> str:
    """The backend that a replica belongs to."""
    if policy.pool(replica.pool).placement is Placement.SPREAD:
        return backend_of(replica.pool)
    return backend_of(replica.pool, replica.capacity_type)


def server_arguments(replica: Replica, policy: PoolPolicy, settings: RouterSettings) -> str:
    """How a replica is checked; the same words in the file and in `add server` (which knows no default-server).

    The id comes from the instance's name, so that every router and every reload hashes prompts to the same replicas.
    `slowstart` keeps a replica that has just come from being flooded. No `on-marked-down shutdown-sessions`: it would
    cut the streams of a replica that drains. Errors are judged by the controller (see breaker), which keeps a floor;
    connections that fail are no matter of judgement (and no client can make them fail), so two of them count as DOWN
    until the checks say otherwise: a machine that vanished without a word makes no third request wait.
    """
    inter = written(settings.check_interval)
    return (
        f"id {replica.number} check inter {inter} fastinter {inter} downinter {inter} fall 3 rise 2 "
        "observe layer4 error-limit 2 on-error mark-down "
        f"agent-check agent-port {AGENT_CHECK_PORT} agent-inter {written(settings.agent_interval)} "
        f"slowstart {written(settings.slow_start)} maxconn {policy.most_per_replica} weight 100 "
        # without the first word, a server that comes by the socket keeps no connection at all
        f"pool-max-conn {policy.most_per_replica} pool-purge-delay {written(IDLE_LOOK)}"
    )


def server_address(replica: Replica) -> str:
    """Where its engine listens."""
    return f"{replica.address}:{ENGINE_PORT}"


def _backend(
    name: str, pool: PoolEntry, replicas: Iterable[Replica], rules: PoolPolicy, settings: RouterSettings
) -> str:
    full = busy("Too many requests wait for this model; try again.", "queue_full")
    lines = [
        f"backend {name}",
        *_balance(rules),
        "    # whoever waits for a machine that vanished without a word is told within a quarter of a minute",
        "    option srvtcpka",
        f"    srvtcpka-idle {written(PROBE_AFTER)}",
        f"    srvtcpka-intvl {written(PROBE_EVERY)}",
        f"    srvtcpka-cnt {PROBES}",
        "    option httpchk",
        "    http-check send meth GET uri /health",
        "    http-check expect status 200",
        answer(429, full, when=f"{{ queue ge {rules.queue} }}", retry_after=2),
        f"    http-request add-header X-Gpufleet-Pool {pool.name}",
        "    # the client's own key stays here",
        f"    http-request set-header Authorization {engine_key.HEADER}",
        f"    http-after-response add-header X-Gpufleet-Reason %[{REASON}]",
        f"    http-after-response add-header X-Gpufleet-Pool {pool.name}",
        *(_affinity() if rules.balance is Balance.PREFIX else ()),
        "    # another key than the router's: the replica's fault, and no matter of the client's key",
        "    http-response deny deny_status 502 if { status 401 }",
        *_usage(),
        "    # a request that an engine refused because it is stopped was not begun: clients may try again",
        f"    http-response deny deny_status 503 if {{ status 500 }} {{ res.body -m sub {quoted(SHUTTING_DOWN)} }}",
        "    # what comes by the activator has the replica's name already",
        "    http-response allow if { srv_id 1 }",
        "    http-response del-header X-Gpufleet- -m beg",
        "    http-response add-header X-Gpufleet-Replica %s",
        "    # used only when no replica can be: HAProxy alone would answer 503 at once",
        f"    server {ACTIVATOR} unix@{ACTIVATOR_SOCKET} id 1 backup",
    ]
    lines += [
        f"    server {replica.name} {server_address(replica)} {server_arguments(replica, rules, settings)}"
        for replica in replicas
    ]
    return "\n".join(lines) + "\n"


def _balance(rules: PoolPolicy) -> list[str]:
    if rules.balance is Balance.LEAST:
        return ["    balance leastconn"]
    return [
        "    # same session or start of a prompt, same replica, within a share of the mean load; others in turn",
        "    balance hash var(txn.affinity)",
        "    hash-type consistent sdbm avalanche",
        f"    hash-balance-factor {BALANCE_FACTOR}",
    ]


def _affinity() -> list[str]:
    """What a replica's cache may know: the session, else the start of a long prompt.

    The system prompt alone would send a whole application to one replica, so the first question counts, too. To read
    them is much of the router's work, so it is done only where there is a choice and enough to choose by, and of a
    body of the usual form by a pattern: the JSON reader does half of all work with a prompt of 1 KB.
    """
    first, second = (f"var(txn.body),json_query('$.messages[{n}].content'),bytes(0,{PREFIX_BYTES})" for n in (0, 1))
    started, cut = "{ var(txn.start) -m found }", f"bytes(0,{PREFIX_BYTES})"
    joined = (
        f"    http-request set-var(txn.start) var(txn.start),{cut},concat(,txn.question)"
        " if { var(txn.question) -m found }"
    )
    system, enough = (
        "{ var(txn.start),bytes(0,6) -m str system }",
        f"{{ var(txn.start) -m len ge {SHORTEST_PREFIX} }}",
    )
    hashed = f"    http-request set-var(txn.affinity) var(txn.start),xxh64 if {enough}"
    return [
        "    # that is all where there is no choice, or little to choose by",
        "    http-request allow if { nbsrv le 1 }",
        "    http-request set-var(txn.affinity) req.hdr(x-session-id)",
        f"    http-request allow if {{ req.body_len lt {SHORTEST_PREFIX} }} || {{ var(txn.affinity) -m found }}",
        "    # what a replica's cache may know: the first message, with the second where that is a system prompt",
        "    # (cut only when it is hashed: a cut makes bytes, and each look at them as text goes over all of them)",
        f"    http-request set-var(txn.start) req.body,bytes(0,{READ_BYTES}),{taken(START, 2)}",
        f"    http-request set-var(txn.affinity) var(txn.start),{cut},xxh64 if {enough} !{system}",
        "    http-request allow if { var(txn.affinity) -m found }",
        f"    http-request set-var(txn.question) req.body,{taken(QUESTION)},{cut} if {system}",
        "    http-request unset-var(txn.start) if { var(txn.start) -m len 0 } || { var(txn.question) -m len 0 }",
        joined,
        hashed,
        f"    http-request allow if {started}",
        "    # of a body in another form: as text, once, for each look into the body itself makes it text again",
        "    http-request set-var(txn.body) req.body,concat()",
        f"    http-request set-var(txn.start) {first}",
        f"    http-request set-var(txn.question) {second} if {started}"
        " { var(txn.body),json_query('$.messages[0].role') -m str system }",
        joined,
        f"    http-request set-var(txn.start) var(txn.body),json_query('$.prompt'),{cut} if !{started}",
        "    http-request unset-var(txn.body)",
        hashed,
    ]


def _usage() -> list[str]:
    """Tokens of an answer that is not streamed, for the metering: only whole JSON is waited for, never a stream."""
    return [
        "    # tokens for the metering; a stream is not waited for",
        "    http-response wait-for-body time 2s if { res.hdr(content-type) -m beg application/json }",
        f"    http-response set-var(txn.tokens) res.body,{taken(TOKENS, 2, '/')}",
    ]
