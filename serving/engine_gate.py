"""The gate: an HAProxy on the instance in front of an engine that cannot protect itself.

The engine listens on loopback. The gate listens at the instance's address, requires the engine's key, passes only the
paths of the engine's `Gate`, and counts requests. Pure: the same inputs give the same text. It needs HAProxy 2.6 or
later with OpenSSL, as the official images have.
"""

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import PurePosixPath
from typing import Final

from serving import metrics
from serving.engines.contract import Probes
from serving.engines.launch import Gate
from serving.router.error_pages import busy, error_page, invalid, quoted

UNIT: Final = "gpufleet-engine-gate.service"
CONFIG_FILE: Final = PurePosixPath("/run/gpu-fleet/engine-gate.cfg")
"""On an instance. It holds no secret: the key is a variable of the container."""
COUNT_PORT: Final = 9502
"""Loopback port that answers the number of open requests and the number of requests passed."""
USER: Final = 2002
"""User and group of the gate's container. The packet filter matches on the group."""
_THREADS: Final = 2
_CONNECTIONS: Final = 16_384
_SILENCE: Final = "1h"
"""Longest time without a byte in either direction. Routers end a request sooner, after their `response_timeout`."""
_KEPT_OPEN: Final = "75s"
"""How long an idle connection of a router stays open: longer than the router itself keeps it, so that no request
meets its end."""
_UNUSUAL: Final = r"//|/\.|[^A-Za-z0-9_.~:@/-]"
"""Parts of paths that an engine may read as another path: `..`, empty segments, encoded characters."""
_OPEN: Final = "open_requests"
_ENGINE: Final = "engine"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateConfig:
    """Everything that the configuration depends on."""

    gate: Gate
    probes: Probes
    address: str
    """Address of the instance."""
    port: int = metrics.PORTS[metrics.Source.ENGINE]
    key_variable: str
    """Variable of the container with the engine's key."""


def loopback_of(address: str) -> str:
    """Return the address on which the engine listens.

    Several machines that share one loopback interface have a loopback address each: it is private already.
    """
    return address if ip_address(address).is_loopback else "127.0.0.1"


def render(config: GateConfig) -> str:
    """Return the configuration."""
    return "\n".join((_global(config), _defaults(), _clients(config), _servers(config), _count(config)))


def _global(config: GateConfig) -> str:
    variable = config.key_variable
    return f"""\
# Written by the node agent; changes made here are lost.
.if !defined({variable})
    .alert "{variable}: is not set, so every key would be refused"
.endif
global
    log stderr format raw local0 notice
    nbthread {_THREADS}
    maxconn {_CONNECTIONS}
    # fewer connections where the container may open fewer files, rather than no start
    no strict-limits
    set-var-fmt proc.key "Bearer ${{{variable}}}"
"""


def _defaults() -> str:
    pages = (
        error_page(400, invalid("The request is malformed.", "bad_request")),
        error_page(408, invalid("The request did not arrive in time.", "request_timeout")),
        error_page(500, busy("The gate could not forward this request.", "internal_error")),
        error_page(502, busy("The engine interrupted its response.", "bad_gateway")),
        error_page(503, busy("The engine does not accept connections; try again.", "no_engine"), retry_after=5),
        error_page(504, busy("The engine did not respond in time.", "timeout")),
    )
    return f"""\
defaults
    mode http
    log global
    option dontlognull
    # errors of the process only: no request, so no prompt and no key
    option dontlog-normal
    timeout connect 5s
    timeout client {_SILENCE}
    timeout server {_SILENCE}
    timeout http-request 30s
    timeout http-keep-alive {_KEPT_OPEN}
    option disable-h2-upgrade
    option http-no-delay
    # engines close idle connections after seconds: a request on one of them could fail
    option http-server-close
    # a client that left ends its request in the engine
    option abortonclose
    option clitcpka
{chr(10).join(pages)}
"""


def _clients(config: GateConfig) -> str:
    gate, probes = config.gate, config.probes
    inference = "|".join(f"(?:{path})" for path in gate.inference)
    readable = dict.fromkeys(("/health", *gate.readable))
    missing = _answer(404, invalid("There is no such endpoint.", "not_found"))
    upgrade = _answer(400, invalid("Upgrade is not supported.", "bad_request"))
    key = _answer(401, invalid("Send the engine's key: Authorization: Bearer KEY.", "invalid_api_key"))
    lines = [
        "frontend instance",
        f"    bind {config.address}:{config.port}",
        "    no log",
        f"    acl unusual path -m reg {quoted(_UNUSUAL)}",
        "    acl relative url -m beg /",
        f"    acl inference path -m reg {quoted(f'^(?:{inference})$')}",
        f"    acl readable path {' '.join(readable)}",
        *(["    acl metrics path /metrics"] if probes.metrics else []),
        "    acl one_key req.fhdr_cnt(authorization) eq 1",
        "    acl right_key req.fhdr(authorization),secure_memcmp(proc.key)",
        f"    {missing} if unusual || !relative",
        "    # another protocol on this connection would pass unseen",
        f"    {upgrade} if {{ req.fhdr_cnt(upgrade) gt 0 }}",
        f"    {missing} unless METH_GET || METH_POST",
        f"    {missing} if METH_GET !readable" + (" !metrics" if probes.metrics else ""),
        f"    {missing} if METH_POST !inference",
        f"    {key} if METH_POST !one_key || METH_POST !right_key",
        "    http-request del-header Authorization",
        f"    use_backend {_ENGINE} if METH_POST",
        *(["    use_backend metrics if metrics"] if probes.metrics else []),
        "    default_backend probes",
    ]
    return "\n".join(lines) + "\n"


def _servers(config: GateConfig) -> str:
    gate, probes = config.gate, config.probes
    engine = f"{loopback_of(config.address)}:{gate.port}"
    lines = [
        "# requests: each one that is here is open, and is counted once",
        f"backend {_ENGINE}",
        "    stick-table type integer size 1 store http_req_cnt",
        "    http-request track-sc0 int(1)",
        f"    server engine {engine}",
        "",
        "backend probes",
        "    # the path that routers check, whichever path the engine has",
        f"    http-request set-path {probes.alive} if {{ path /health }}",
        f"    server engine {engine}",
    ]
    if probes.metrics:
        lines += [
            "",
            "backend metrics",
            f"    http-request set-path {probes.metrics}",
            f"    server metrics {loopback_of(config.address)}:{probes.metrics_port or gate.port}",
        ]
    return "\n".join(lines) + "\n"


def _count(config: GateConfig) -> str:
    text = f'"%[be_conn({_ENGINE})] %[int(1),table_http_req_cnt({_ENGINE})]\\n"'
    return f"""\
# for the node agent: open requests, requests passed since the start
frontend {_OPEN}
    bind {loopback_of(config.address)}:{COUNT_PORT}
    no log
    http-request return status 200 content-type text/plain lf-string {text}
"""


def _answer(status: int, body: str) -> str:
    return f"http-request return status {status} content-type application/json string {quoted(body)}"
