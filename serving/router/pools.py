"""Renders one HAProxy backend for each pool (three when its capacity types fill in order)."""

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
"""Maximum load of a warm replica, in percent of the mean. With 150, half of a hot prompt's requests leave their warm
replica; with 300, a pool of three has no limit at all."""
PREFIX_BYTES = 512
"""Bytes of the system prompt, and of the first question, that identify a cached prefix."""
READ_BYTES = 704
"""Bytes of the body that are read for the first message's text. The text starts early, and its first `PREFIX_BYTES`
count. Each byte costs CPU time."""
SHORTEST_PREFIX = 200
"""Shorter prompt prefixes do not justify a warm cache; such requests are distributed evenly."""
IDLE_LOOK = timedelta(seconds=1)
"""Interval between checks for idle connections to an engine. Each check closes half of the unneeded ones."""
PROBE_AFTER = timedelta(seconds=5)
"""After this silence on a connection to an engine, the kernel probes whether the machine still exists."""
PROBE_EVERY = timedelta(seconds=2)
PROBES = 3
"""Unanswered probes that end the connection. A busy machine answers, because its kernel does."""
SHUTTING_DOWN = "cannot schedule new futures after shutdown"
"""Part of vLLM's 500 response to requests after SIGTERM. HAProxy can retry only by status, and other 500 responses
may come from requests that ran. So the router returns 503 for this response."""
ACTIVATOR = "activator"
"""Name of the server that holds requests while a pool has no replica."""


def sections(pool: PoolEntry, replicas: Iterable[Replica], policy: RouterPolicy, settings: RouterSettings) -> str:
    """Return the backends of a pool."""
    rules = policy.pool(pool.name)
    known = tuple(replicas)
    if rules.placement is Placement.SPREAD:
        return _backend(backend_of(pool.name), pool, known, rules, settings)
    return "\n".join(
        _backend(name, pool, [r for r in known if backend_for(r, policy) == name], rules, settings)
        for name in capacity_backends(pool.name)
    )


def backend_for(replica: Replica, policy: RouterPolicy) -> str:
    """Return the name of a replica's backend."""
    if policy.pool(replica.pool).placement is Placement.SPREAD:
        return backend_of(replica.pool)
    return backend_of(replica.pool, replica.capacity_type)


def server_arguments(replica: Replica, policy: PoolPolicy, settings: RouterSettings) -> str:
    """Return the check arguments of a replica, for the file and for `add server` (which ignores default-server).

    The id is derived from the instance's name, so that every router and every reload hashes prompts to the same
    replicas. `slowstart` limits the load of a new replica. `on-marked-down shutdown-sessions` is not set: it would
    cut the streams of a draining replica. The controller judges errors and keeps a floor (see breaker). Clients
    cannot cause failed connections, so two of them set the server DOWN until its checks succeed: a machine that
    vanished delays at most two requests. `fastinter` applies between UP and DOWN: a router that restarts has its
    replicas after little more than one check interval.
    """
    inter, fast = written(settings.check_interval), written(settings.check_interval / 4)
    return (
        f"id {replica.number} check inter {inter} fastinter {fast} downinter {inter} fall 3 rise 2 "
        "observe layer4 error-limit 2 on-error mark-down "
        f"agent-check agent-port {AGENT_CHECK_PORT} agent-inter {written(settings.agent_interval)} "
        f"slowstart {written(settings.slow_start)} maxconn {policy.most_per_replica} weight 100 "
        # without pool-max-conn, a server added through the socket keeps no idle connections
        f"pool-max-conn {policy.most_per_replica} pool-purge-delay {written(IDLE_LOOK)}"
    )


def server_address(replica: Replica) -> str:
    """Return the address of its engine."""
    return f"{replica.address}:{ENGINE_PORT}"


def _backend(
    name: str, pool: PoolEntry, replicas: Iterable[Replica], rules: PoolPolicy, settings: RouterSettings
) -> str:
    full = busy("Too many requests wait for this model; try again.", "queue_full")
    lines = [
        f"backend {name}",
        *_balance(rules),
        "    # TCP keepalive: a client of a machine that vanished gets an error within 15 seconds",
        "    option srvtcpka",
        f"    srvtcpka-idle {written(PROBE_AFTER)}",
        f"    srvtcpka-intvl {written(PROBE_EVERY)}",
        f"    srvtcpka-cnt {PROBES}",
        "    option httpchk",
        "    http-check send meth GET uri /health",
        "    http-check expect status 200",
        answer(429, full, when=f"{{ queue ge {rules.queue} }}", retry_after=2),
        f"    http-request add-header X-Gpufleet-Pool {pool.name}",
        "    # the client's key is replaced by the engine's key",
        f"    http-request set-header Authorization {engine_key.HEADER}",
        f"    http-after-response add-header X-Gpufleet-Reason %[{REASON}]",
        f"    http-after-response add-header X-Gpufleet-Pool {pool.name}",
        *(_affinity() if rules.balance is Balance.PREFIX else ()),
        "    # 401: the replica has another key than the router; the client's key is not the cause",
        "    http-response deny deny_status 502 if { status 401 }",
        *_usage(),
        "    # a request that an engine refused because it stops was not started: clients may retry",
        f"    http-response deny deny_status 503 if {{ status 500 }} {{ res.body -m sub {quoted(SHUTTING_DOWN)} }}",
        "    # responses from the activator already name the replica",
        "    http-response allow if { srv_id 1 }",
        "    http-response del-header X-Gpufleet- -m beg",
        "    http-response add-header X-Gpufleet-Replica %s",
        "    # used only without an available replica: HAProxy would respond 503 at once",
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
    """Select replicas by what their caches may hold: the session, or else the prefix of a long prompt.

    The system prompt alone would send a whole application to one replica, so the first question also counts. Reading
    both is much of the router's work. So it is done only with several replicas and a long prefix, and by a pattern
    for bodies of the usual form: the JSON reader takes half of all work with a prompt of 1 KB.
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
        "    # done if there is only one replica, or too little to hash",
        "    http-request allow if { nbsrv le 1 }",
        "    http-request set-var(txn.affinity) req.hdr(x-session-id)",
        f"    http-request allow if {{ req.body_len lt {SHORTEST_PREFIX} }} || {{ var(txn.affinity) -m found }}",
        "    # what a replica's cache may contain: the first message, and the second if the first is a system prompt",
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
    """Return rules that read tokens for metering. They wait for complete JSON responses, never for streams."""
    return [
        "    # tokens for the metering; do not wait for streams",
        "    http-response wait-for-body time 2s if { res.hdr(content-type) -m beg application/json }",
        f"    http-response set-var(txn.tokens) res.body,{taken(TOKENS, 2, '/')}",
    ]
