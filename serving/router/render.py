"""Renders the configuration of HAProxy 2.6. Pure: the same inputs give the same text.

HAProxy runs in the router's folder (`-C`), so all paths in the text are relative. The folder's path can have any
length and any characters.
"""

from collections.abc import Iterable
from typing import Final

from serving.router.error_pages import busy, error_page, invalid, quoted
from serving.router.policy import RouterPolicy
from serving.router.pools import sections
from serving.router.rules import REASON, frontend, inner_frontend
from serving.router.settings import ADMIN_SOCKET, METRICS_SOCKET, SERVER_STATE, RouterSettings, written
from serving.router.topology import Replica, Topology

LOG_FIELDS: Final = (
    ("t", "%Ts.%ms"),
    ("id", "%[var(txn.id)]"),
    ("status", "%ST"),
    ("backend", "%b"),
    ("server", "%s"),
    ("end", "%tsc"),
    ("pool", "%[var(txn.pool)]"),
    ("model", "%[var(txn.model)]"),
    ("why", f"%[{REASON}]"),
    ("key", "%[var(txn.key)]"),
    ("class", "%[var(txn.class)]"),
    ("arrive", "%TR"),
    ("queue", "%Tw"),
    ("connect", "%Tc"),
    ("first", "%Tr"),
    ("all", "%Ta"),
    ("in", "%U"),
    ("out", "%B"),
    ("retries", "%rc"),
    ("tokens", "%[var(txn.tokens)]"),
)
"""One log line per request: times in ms, sizes in bytes, `-` for no value. It has no headers, queries or bodies, so
no prompts and no keys."""

LOG_FORMAT: Final = (
    "request " + " ".join(f"{name}={value}" for name, value in LOG_FIELDS) + " client=%[var(txn.refused)]"
)
"""The log line, with the client's address when the router or an engine refused the request (401, 403, 404)."""


def render(topology: Topology, policy: RouterPolicy, replicas: Iterable[Replica], settings: RouterSettings) -> str:
    """Return the whole configuration. It includes the known replicas, so that a reload keeps them."""
    known = tuple(replicas)
    parts = [_global(topology, settings), _defaults(settings), _metrics(settings)]
    parts += [frontend(topology, policy, settings), inner_frontend(topology, policy), _tables()]
    parts += [sections(pool, [r for r in known if r.pool == pool.name], policy, settings) for pool in topology.pools]
    return "\n".join(parts)


def _global(topology: Topology, settings: RouterSettings) -> str:
    environment = " ".join(topology.environment.split())  # one line, whatever the document contains
    return f"""\
# The router of {environment or "no fleet yet"}. Written by gpufleet; changes made here are lost.
global
    stats socket unix@{ADMIN_SOCKET} mode 600 level admin expose-fd listeners
    stats timeout 60s
    server-state-file {SERVER_STATE}
    log stdout format raw local0 info
    nbthread {settings.threads}
    maxconn {settings.max_connections}
    # fewer connections where the system allows fewer files, rather than no start
    no strict-limits
    # the most of a request that is read for its model
    tune.bufsize {settings.buffer_bytes}
    # a worker that a reload left behind ends its streams, but not for ever
    hard-stop-after {written(settings.response_timeout)}
"""


def _defaults(settings: RouterSettings) -> str:
    pages = (
        error_page(400, invalid("The request is malformed.", "bad_request")),
        error_page(408, invalid("The request did not arrive in time.", "request_timeout")),
        error_page(500, busy("The router could not forward this request.", "internal_error")),
        error_page(502, busy("The replica interrupted its response.", "bad_gateway")),
        error_page(503, busy("No replica of this model is ready; try again.", "no_replica_ready"), retry_after=5),
        error_page(504, busy("The replica did not respond in time.", "timeout")),
    )
    return f"""\
defaults
    mode http
    log global
    log-format {quoted(LOG_FORMAT)}
    option dontlognull
    timeout connect {written(settings.connect_timeout)}
    timeout client {written(settings.response_timeout)}
    timeout server {written(settings.response_timeout)}
    timeout queue {written(settings.queue_timeout)}
    timeout check {written(settings.check_timeout)}
    timeout http-request {written(settings.request_timeout)}
    timeout http-keep-alive 60s
    # without it each chunk of a stream waits for the next one or for the kernel's cork timer (200 ms)
    option http-no-delay
    # a connection to an engine carries many requests: to open one for each costs half of all speed. All but one are
    # ended when they idle for seconds (pool-purge-delay), long before the engine would: a request could meet its end
    http-reuse safe
    # a reload closes an idle client's connection after its next answer, not while its next request is on the way
    option idle-close-on-response
    # a client that left waits for nothing any more
    option abortonclose
    load-server-state-from-file global
    # only what cannot have begun: a replica may have generated for a request that failed later, and errors that are
    # tried again in secret would never be judged
    retries 3
    option redispatch 1
    retry-on conn-failure
{chr(10).join(pages)}
"""


def _metrics(settings: RouterSettings) -> str:
    return f"""\
# for Prometheus: HAProxy's own page and the controller's
frontend metrics
    bind {settings.metrics_bind}
    no log
    http-request use-service prometheus-exporter if {{ path /metrics }}
    http-request return status 404 unless {{ path /router/metrics }}
    default_backend controller

backend controller
    server controller unix@{METRICS_SOCKET}
"""


def _tables() -> str:
    return """\
# requests of each key with a limit in the last ten seconds, by the key's hash
backend keys_rate
    stick-table type string len 64 size 100k expire 1m store http_req_rate(10s)
"""
