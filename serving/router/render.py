"""The configuration of HAProxy 2.6, as text. Pure: same pools, replicas and settings, same text."""

import json
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from serving.router.settings import RouterPaths, RouterSettings
from serving.router.topology import AGENT_CHECK_PORT, ENGINE_PORT, PoolEntry, Replica, Topology

LOG_FORMAT: Final = (
    "%tr %ID %ci %ST %b/%s term=%tsc pool=%[var(txn.pool)] why=%[var(txn.why)] "
    "ms=%TR/%Tw/%Tc/%Tr/%Ta bytes=%U/%B retries=%rc queue=%sq/%bq"
)
"""No header, no query and no body: prompts and keys stay out of the log."""


def backend_of(pool: str) -> str:
    """HAProxy's name for a pool."""
    return f"pool_{pool}"


def render(topology: Topology, replicas: Iterable[Replica], settings: RouterSettings, paths: RouterPaths) -> str:
    """The whole configuration. Replicas known now are written into it, so that a reload keeps them."""
    known = tuple(replicas)
    parts = [_global(settings, paths), _defaults(settings), _metrics(settings), _clients(topology, settings, paths)]
    parts += [_pool(pool, [r for r in known if r.pool == pool.name], settings) for pool in topology.pools]
    return "\n".join(parts)


def render_models(topology: Topology) -> str:
    """The map file: model name, pool."""
    return "".join(f"{model} {pool}\n" for model, pool in topology.models.items())


def server_arguments(settings: RouterSettings) -> str:
    """How a replica is checked; the same words in the file and in `add server` (which knows no default-server).

    `slowstart` keeps a replica that has just come back from being flooded. No `on-marked-down
    shutdown-sessions`: it would cut the streams of a replica that drains.
    """
    inter = _ms(settings.check_interval)
    return (
        f"check inter {inter} fastinter {inter} downinter {inter} fall 3 rise 2 "
        f"agent-check agent-port {AGENT_CHECK_PORT} agent-inter {_ms(settings.agent_interval)} "
        f"observe layer7 error-limit 5 on-error mark-down slowstart 5s maxconn {settings.most_per_replica} weight 100"
    )


def error_body(message: str, kind: str, code: str, param: str | None = None) -> str:
    """An error in OpenAI's shape, as one line of JSON."""
    return json.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})


def _ms(duration: timedelta) -> str:
    return f"{int(duration.total_seconds() * 1000)}ms"


def _quoted(text: str) -> str:
    """A word of the configuration, safe in double quotes."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$") + '"'


def _answer(status: int, body: str, *, when: str, retry_after: int | None = None) -> str:
    hint = f" hdr Retry-After {retry_after}" if retry_after is not None else ""
    # a log-format string: a literal % is written %%
    text = _quoted(body.replace("%%", "%").replace("%", "%%"))
    return f"    http-request return status {status} content-type application/json lf-string {text}{hint} if {when}"


def _global(settings: RouterSettings, paths: RouterPaths) -> str:
    return f"""\
# Written by gpufleet; changes made here are lost.
global
    stats socket {_quoted(str(paths.admin_socket))} mode 600 level admin expose-fd listeners
    stats timeout 60s
    server-state-file {_quoted(str(paths.server_state))}
    log stdout format raw local0 info
    nbthread {settings.threads}
    maxconn {settings.most_connections}
    no strict-limits
    tune.bufsize {settings.buffer_bytes}
    # a worker that a reload left behind ends its streams, but not for ever
    hard-stop-after {_ms(settings.response_timeout)}
"""


def _defaults(settings: RouterSettings) -> str:
    busy = error_body("No replica of this model is ready; try again.", "server_error", "no_replica_ready")
    broken = error_body("The replica broke off its answer.", "server_error", "bad_gateway")
    silent = error_body("The replica did not answer in time.", "server_error", "timeout")
    slow = error_body("The request did not arrive in time.", "invalid_request_error", "request_timeout")
    malformed = error_body("The request is malformed.", "invalid_request_error", "bad_request")
    return f"""\
defaults
    mode http
    log global
    option dontlognull
    timeout connect {_ms(settings.connect_timeout)}
    timeout client {_ms(settings.response_timeout)}
    timeout server {_ms(settings.response_timeout)}
    timeout queue {_ms(settings.queue_timeout)}
    timeout http-request {_ms(settings.request_timeout)}
    timeout http-keep-alive 60s
    # without it each chunk of a stream waits for the next one or for the kernel's cork timer (200 ms)
    option http-no-delay
    # an idle connection that its engine closes just now would fail a request
    option http-server-close
    load-server-state-from-file global
    # only what cannot have begun: a replica may have generated for a request that failed later
    retries 3
    option redispatch 1
    retry-on conn-failure
    http-error status 400 content-type application/json string {_quoted(malformed)}
    http-error status 408 content-type application/json string {_quoted(slow)}
    http-error status 502 content-type application/json string {_quoted(broken)}
    http-error status 503 content-type application/json string {_quoted(busy)} hdr Retry-After 5
    http-error status 504 content-type application/json string {_quoted(silent)}
"""


def _metrics(settings: RouterSettings) -> str:
    return f"""\
frontend metrics
    bind {settings.metrics_bind}
    no log
    http-request use-service prometheus-exporter if {{ path /metrics }}
    http-request return status 404
"""


def _clients(topology: Topology, settings: RouterSettings, paths: RouterPaths) -> str:
    lines = [
        "frontend clients",
        f"    bind {settings.bind}",
        f"    log-format {_quoted(LOG_FORMAT)}",
        "    unique-id-format %[uuid()]",
        "    option http-buffer-request",
        "    http-request set-var(txn.why) str(none)",
        "    http-request set-header X-Request-Id %[unique-id] unless { req.hdr(x-request-id) -m found }",
        "    http-request return status 200 content-type text/plain string ok if { path /router/health }",
        *_models_list(topology),
        "    http-request set-var(txn.model) req.hdr(x-model) if { req.hdr(x-model) -m found }",
        "    http-request set-var(txn.model) req.body,json_query('$.model')"
        " if METH_POST !{ var(txn.model) -m found }",
        "    http-request set-var(txn.body_bytes) req.body_size",
        _answer(
            503, error_body("The router has no fleet yet.", "server_error", "no_fleet"), when="TRUE", retry_after=5
        )
        if not topology.pools
        else _answer(
            413,
            error_body(
                "The request is larger than the router reads; name the model in the header x-model.",
                "invalid_request_error",
                "body_too_large",
            ),
            when="!{ var(txn.model) -m found } { req.body_len,sub(txn.body_bytes) -m int lt 0 }",
        ),
        _answer(
            400,
            error_body("Name a model: the field `model` or the header x-model.", "invalid_request_error", "no_model"),
            when="!{ var(txn.model) -m found }",
        ),
        f"    http-request set-var(txn.pool) var(txn.model),map_str({_quoted(str(paths.models_map))})",
        _unknown_model(topology),
        "    http-request set-var(txn.why) str(default)",
        f"    use_backend {backend_of('%[var(txn.pool)]')}",
    ]
    return "\n".join(lines) + "\n"


def _models_list(topology: Topology) -> list[str]:
    models = {
        "object": "list",
        "data": [{"id": name, "object": "model", "created": 0, "owned_by": "gpu-fleet"} for name in topology.models],
    }
    return [_answer(200, json.dumps(models), when="METH_GET { path /v1/models }")]


def _unknown_model(topology: Topology) -> str:
    names = ", ".join(topology.models) or "none"
    text = f"This model does not exist here. Models: {names}"
    return _answer(
        404, error_body(text, "invalid_request_error", "model_not_found", "model"), when="!{ var(txn.pool) -m found }"
    )


def _pool(pool: PoolEntry, replicas: Iterable[Replica], settings: RouterSettings) -> str:
    lines = [
        f"backend {backend_of(pool.name)}",
        "    balance leastconn",
        "    option httpchk",
        "    http-check send meth GET uri /health",
        "    http-check expect status 200",
        f"    http-response set-header X-Gpufleet-Pool {pool.name}",
        "    http-response set-header X-Gpufleet-Reason %[var(txn.why)]",
        "    http-response set-header X-Gpufleet-Replica %s",
    ]
    lines += [
        f"    server {replica.name} {replica.address}:{ENGINE_PORT} {server_arguments(settings)}"
        for replica in replicas
    ]
    return "\n".join(lines) + "\n"
