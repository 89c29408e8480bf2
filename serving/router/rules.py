"""The frontend for clients: identifies the client, selects the pool, and records the reason.

Order of the decision: override, embeddings, canary, arms of an experiment, latency objective, class, default. The
first rule with a result wins, and its name is in the header x-gpufleet-reason. Each rule costs time for each request,
so rules that the policy does not use are left out. The first use of a rule needs a reload; changes of its values need
none. Of two conditions, the one that fails more often comes first. A rule without its sample (no such header, key or
entry) does not change its variable, so most rules need no condition.
"""

import json
from typing import Final

from serving.router.body_patterns import MODEL_EARLY, MODEL_LATE, taken
from serving.router.error_pages import answer, busy, invalid
from serving.router.maps import UNKNOWN_MS, Map, candidates
from serving.router.policy import Placement, RouterPolicy
from serving.router.settings import CERTIFICATE, INNER_SOCKET, RouterSettings
from serving.router.topology import Topology, backend_of, capacity_backends

BUCKETS: Final = 10_000
"""Number of hash buckets for users: canary shares have steps of a hundredth of a percent."""

REASON: Final = "var(txn.why,default)"
"""The reason of the decision. Most requests use the default pool of their model, so that reason is not a variable."""
_DECIDED: Final = "{ var(txn.pool) -m found }"
_UNDECIDED: Final = f"!{_DECIDED}"
_BOUND: Final = "{ var(txn.bound) -m found }"
"""The client's key is restricted to certain models."""
_MORE_TO_COME: Final = "{ req.body_len,sub(txn.body_bytes) -m int lt 0 }"
_EARLY_BYTES: Final = 96
"""Bytes of a body that are searched first for the model: a name of 80 characters fits. Each byte costs time."""
_CONNECTION_ID: Final = "%{+X}Ts%[rand]"
"""ID of a connection: its start second, and a random number. It costs a tenth of uuid()."""
_NEW_ID: Final = "%[var(sess.id)]-%rt"
"""ID of a request whose client sends none: its connection, and the number of earlier requests of the router."""
_ID: Final = "^[A-Za-z0-9._-]{1,64}$"
ENDPOINTS: Final = (
    "/v1/chat/completions",
    "/v1/chat/completions/batch",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/score",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
)
"""Paths that clients may POST to: those of vLLM 0.32 that answer one request and do not change the engine. The
comparison uses the literal path, so encoded paths (`%2e%2e`) reach nothing else."""
_SPECIAL_HEADERS: Final = (
    "forwarded", "transfer-encoding", "x-gpufleet-[^,]*", "x-max-latency-ms", "x-model(?:-override)?", "x-user-class",
)  # fmt: skip
"""Headers that the rules after the shortcut read or remove. Without required keys, `authorization` is also one."""
_CLASS: Final = "^[a-z][a-z0-9-]{0,30}$"


def frontend(topology: Topology, policy: RouterPolicy, settings: RouterSettings) -> str:
    """Return the whole section."""
    endpoints, client = _endpoints(topology, policy), _client(policy)
    place = policy.priorities.get(policy.default_class, 0)
    first, later = ([*endpoints, *client], []) if policy.require_key else ([], [*endpoints, *client])
    lines = [
        "frontend clients",
        f"    bind {settings.bind}{_tls(settings)}",
        "    option http-buffer-request",
        "    # once per connection: the client's address as text, and the first part of its request ids",
        "    tcp-request session set-var(sess.client) src,concat()",
        f"    tcp-request session set-var-fmt(sess.id) {_CONNECTION_ID}",
        "    # remove the router's own headers from requests, except a request id; add reason and pool to responses",
        *_headers(policy),
        # without a default priority the value is 0, HAProxy's own default
        *([f"    http-request set-priority-class int({place})"] if place else []),
        *first,
        "    # which model: first search the usual place, before any list or object of the body",
        *_early(policy),
        *later,
        *_model(settings),
        "    # which pool: the first rule that selects one sets the reason; later rules do not change it",
        *_decision(topology, policy),
        *_backend(topology, policy),
    ]
    return "\n".join(lines) + "\n"


def inner_frontend(topology: Topology, policy: RouterPolicy) -> str:
    """Return the frontend for requests that the activator forwards; their pool is already selected."""
    lines = [
        "# requests that the activator held and forwards now",
        "frontend inner",
        f"    bind unix@{INNER_SOCKET} mode 600",
        "    no log",
        "    option http-buffer-request",
        "    http-request set-var(txn.pool) req.hdr(x-gpufleet-pool)",
        "    # the backend adds these, and the backend before the activator adds them again",
        "    http-request del-header X-Gpufleet-Pool",
        "    http-after-response del-header X-Gpufleet-Pool",
        "    http-after-response del-header X-Gpufleet-Reason",
        *_backend(topology, policy),
    ]
    return "\n".join(lines) + "\n"


def _tls(settings: RouterSettings) -> str:
    return f" ssl crt {CERTIFICATE} alpn h2,http/1.1 ssl-min-ver TLSv1.2" if settings.certificate else ""


def _headers(policy: RouterPolicy) -> list[str]:
    return [
        f"    acl trusted src {' '.join(policy.trusted_networks) or '255.255.255.255'}",
        "    http-request set-header X-Forwarded-For %[var(sess.client)]",
        "    # an id of ours, or the client's one, whole (fhdr: not up to a comma): a space in it would begin",
        "    # another field of the log",
        f"    http-request set-var-fmt(txn.id) {_NEW_ID}",
        "    http-request set-var(txn.id) req.fhdr(x-request-id) if { req.fhdr_cnt(x-request-id) eq 1 }"
        f" {{ req.fhdr(x-request-id) -m reg {_ID} }}",
        "    http-request set-header X-Request-Id %[var(txn.id)]",
        "    http-after-response set-header X-Request-Id %[var(txn.id)] if { var(txn.id) -m found }",
        "    # the log contains the refused client's address",
        "    http-after-response set-var(txn.refused) var(sess.client) if { status 401 403 404 }",
    ]


def _endpoints(topology: Topology, policy: RouterPolicy) -> list[str]:
    models = {
        "object": "list",
        "data": [{"id": name, "object": "model", "created": 0, "owned_by": "gpu-fleet"} for name in topology.models],
    }
    return [
        "    http-request del-header Forwarded",
        "    http-request del-header X-Gpufleet- -m beg",
        "    # the router's own endpoints; clients reach only these endpoints of engines (not /metrics, /sleep)",
        f"    acl engine_endpoint path {' '.join(dict.fromkeys([*ENDPOINTS, *policy.extra_endpoints]))}",
        "    http-request return status 200 content-type text/plain string ok if METH_GET { path /router/health }",
        answer(200, json.dumps(models), when="METH_GET { path /v1/models }"),
        answer(404, invalid("There is no such endpoint.", "not_found"), when="!engine_endpoint"),
        answer(404, invalid("This endpoint accepts only POST.", "not_found"), when="!METH_POST"),
    ]


def _early(policy: RouterPolicy) -> list[str]:
    """Add a shortcut: most requests specify only a model, and need no further rule when only the model counts."""
    found = f"req.body,bytes(0,{_EARLY_BYTES}),{taken(MODEL_EARLY)}"
    if any(model.canary or model.arms or model.by_class for model in policy.models.values()):
        return [f"    http-request set-var(txn.named) {found}"]
    names = "|".join([*_SPECIAL_HEADERS, *(() if policy.require_key else ("authorization",))])
    pages = ["/v1/chat/completions", "/v1/completions", *(() if policy.embeddings_pool else ("/v1/embeddings",))]
    return [
        f"    http-request set-var(txn.model) {found}",
        "    # shortcut for requests without special headers: no later rule applies to them",
        f"    acl usual_page path {' '.join(pages)}",
        f"    acl no_special_headers req.hdr_names -m reg '^(?!(?:.*,)?(?:{names})(?:,|$))'",
        f"    http-request set-var(txn.pool) var(txn.model),map_str({Map.MODELS.file})"
        f" if usual_page METH_POST no_special_headers{f' !{_BOUND}' if policy.require_key else ''}",
        f"    http-request allow if {_DECIDED}",
        "    # an unknown model name is not logged: it can contain anything",
        "    http-request set-var(txn.named) var(txn.model)",
        "    http-request unset-var(txn.model)",
    ]


def _model(settings: RouterSettings) -> list[str]:
    whole = f"{{ req.body_len lt {settings.buffer_bytes // 2} }}"
    mixed = f"{{ var(txn.body_bytes) -m found }} {whole} {_MORE_TO_COME}"
    return [
        "    http-request set-var(txn.body_bytes) req.body_size if { req.hdr(transfer-encoding) -m found }",
        "    # HAProxy ignores this length but still counts with it: complete chunks would seem incomplete",
        answer(400, invalid("Content-Length and Transfer-Encoding exclude each other.", "bad_request"), when=mixed),
        "    # the header x-model takes precedence; else the first field of that name, anywhere in the body",
        "    http-request set-var(txn.named) req.hdr(x-model)",
        f"    http-request set-var(txn.named) req.body,{taken(MODEL_LATE)} if {{ var(txn.named) -m len 0 }}",
        "    http-request set-var(txn.named) req.body,json_query('$.model') if { var(txn.named) -m len 0 }",
        f"    http-request set-var(txn.pool_by_model) var(txn.named),map_str({Map.MODELS.file})",
        "    http-request set-var(txn.model) var(txn.named) if { var(txn.pool_by_model) -m found }",
    ]


def _client(policy: RouterPolicy) -> list[str]:
    lines = [
        "    # which client: known by the hash of its key; its limit, its class, its place in a queue",
        "    # the key itself is in no variable, log or table",
        "    http-request set-var(txn.key_hash) req.hdr(authorization),word(2,' '),sha2(256),hex,lower",
        f"    http-request set-var(txn.key) var(txn.key_hash),map_str({Map.KEYS.file})",
        f"    http-request set-var(txn.bound) var(txn.key_hash),map_str({Map.KEY_MODELS.file})",
    ]
    if policy.require_key:
        text = invalid("Send a valid API key: Authorization: Bearer KEY.", "invalid_api_key")
        lines.append(answer(401, text, when="!{ var(txn.key) -m found }"))
    return [*lines, *_limit(policy), *_class(policy)]


def _limit(policy: RouterPolicy) -> list[str]:
    """Track only keys with a limit. A key that is in no file gets the policy's limit."""
    lines = [f"    http-request set-var(txn.limit) var(txn.key),map_str_int({Map.KEY_LIMITS.file})"]
    if policy.requests_per_10s is not None:
        lines.append(
            f"    http-request set-var(txn.limit) int({policy.requests_per_10s})"
            " if { var(txn.key_hash) -m found } !{ var(txn.limit) -m found }"
        )
    return [
        *lines,
        "    http-request track-sc0 var(txn.key_hash) table keys_rate if { var(txn.limit) -m found }",
        answer(
            429,
            invalid("This key has sent too many requests; wait.", "rate_limit_exceeded"),
            when="{ var(txn.limit) -m found } { sc_http_req_rate(0),sub(txn.limit) -m int gt 0 }",
            retry_after=10,
        ),
    ]


def _class(policy: RouterPolicy) -> list[str]:
    """Set the class, and with it the queue priority."""
    return [
        f"    http-request set-var(txn.class) var(txn.key),map_str({Map.KEY_CLASSES.file})",
        "    http-request set-var(txn.class) req.fhdr(x-user-class)"
        f" if {{ req.fhdr(x-user-class,-1) -m reg {_CLASS} }} trusted",
        f"    http-request set-priority-class var(txn.class),map_str_int({Map.PRIORITIES.file},0)",
    ]


def _decision(topology: Topology, policy: RouterPolicy) -> list[str]:
    if not topology.pools:
        return [answer(503, busy("The router has no fleet yet.", "no_fleet"), when="TRUE", retry_after=5)]
    return [
        *_bound(),
        *_override(topology),
        *_embeddings(policy),
        *_user(policy),
        *_canary(policy),
        *_arms(policy),
        *_latency(topology, policy),
        *_by_class(policy),
        "    # 7. default",
        f"    http-request set-var(txn.pool) var(txn.pool_by_model) if {_UNDECIDED}",
        "    # requests with a pool are done; all others need a served model",
        f"    http-request allow if {_DECIDED}",
        *_model_errors(topology),
    ]


def _bound() -> list[str]:
    """Give a restricted key only its models, by these models' own rules: no other rule may select its pool."""
    none = "This API key is limited to certain models; name one of them."
    return [
        "    # 0. keys that are limited to certain models",
        "    http-request set-var(txn.may) var(txn.key_hash),concat(:,txn.model),"
        f"map_str({Map.KEY_MODELS.file}) if {_BOUND}",
        answer(403, invalid(none, "model_not_allowed", "model"), when=f"{_BOUND} !{{ var(txn.may) -m found }}"),
        answer(
            403,
            invalid(
                "x-model-override is not allowed for a key that is limited to certain models.", "override_not_allowed"
            ),
            when=f"{_BOUND} {{ req.fhdr_cnt(x-model-override) gt 0 }}",
        ),
    ]


def _because(reason: str) -> str:
    """Record the reason if the previous rule selected a pool."""
    chosen = "{ var(txn.pool) -m found } !{ var(txn.why) -m found }"
    return f"    http-request set-var(txn.why) str({reason}) if {chosen}"


def _override(topology: Topology) -> list[str]:
    asked = "{ var(txn.override) -m found }"
    names = ", ".join(pool.name for pool in topology.pools)
    return [
        "    # 1. override: only from trusted networks",
        "    http-request set-var(txn.override) req.fhdr(x-model-override)",
        answer(
            403,
            invalid("x-model-override is not allowed from your network.", "override_not_allowed"),
            when=f"{asked} !trusted",
        ),
        f"    http-request set-var(txn.pool) var(txn.override),map_str({Map.POOLS.file})",
        answer(
            400,
            invalid(f"x-model-override does not name a pool. Pools: {names}", "unknown_pool"),
            when=f"{asked} {_UNDECIDED}",
        ),
        _because("override"),
        f"    http-request del-header X-Model-Override if {asked}",
    ]


def _embeddings(policy: RouterPolicy) -> list[str]:
    if policy.embeddings_pool is None:
        return []
    return [
        "    # 2. embeddings",
        f"    http-request set-var(txn.pool) str({policy.embeddings_pool}) if {{ path /v1/embeddings }} {_UNDECIDED}"
        f" !{_BOUND}",
        _because("embeddings"),
    ]


def _model_errors(topology: Topology) -> list[str]:
    too_large = "The request is larger than the router reads; name the model in the header x-model."
    none = "Name a model: the field `model`, or the header x-model if the body is nested more than 20 deep."
    unknown = f"This model does not exist here. Models: {', '.join(topology.models) or 'none'}"
    nameless = "!{ var(txn.named) -m len gt 0 }"
    return [
        f"    http-request set-var(txn.body_bytes) req.body_size if {nameless}",
        answer(413, invalid(too_large, "body_too_large"), when=f"{nameless} {_MORE_TO_COME}"),
        answer(400, invalid(none, "no_model", "model"), when=nameless),
        answer(404, invalid(unknown, "model_not_found", "model"), when="TRUE"),
    ]


def _user(policy: RouterPolicy) -> list[str]:
    """Set the user that groups requests for canaries and arms."""
    if not any(model.canary or model.arms for model in policy.models.values()):
        return []
    return [
        "    # whose requests belong together: those of a user, else of a key",
        "    http-request set-var(txn.user) var(txn.key)",
        "    http-request set-var(txn.user) req.hdr(x-user-id)",
    ]


def _canary(policy: RouterPolicy) -> list[str]:
    """Select canary users by xxh32: even over numbered users, never negative. `Canary.salt` is hashed, too."""
    if not any(model.canary for model in policy.models.values()):
        return []
    known = "{ var(txn.user) -m found }"
    return [
        "    # 3. canary: users by their salted hash, always the same ones",
        f"    http-request set-var(txn.salt) var(txn.model),map_str({Map.CANARY_SALT.file})",
        f"    http-request set-var(txn.bucket) var(txn.salt),concat(:,txn.user),xxh32,mod({BUCKETS}) if {known}",
        f"    http-request set-var(txn.share) var(txn.model),map_str_int({Map.CANARY_SHARE.file},0)",
        f"    http-request set-var(txn.beyond) var(txn.bucket),sub(txn.share) if {known}",
        f"    http-request set-var(txn.pool) var(txn.model),map_str({Map.CANARY_POOL.file}) if {_UNDECIDED}"
        f" {known} {{ var(txn.beyond) -m int lt 0 }}",
        _because("canary"),
    ]


def _arms(policy: RouterPolicy) -> list[str]:
    """Select an arm. Users without a name are assigned by address, so that arms get all traffic."""
    if not any(model.arms for model in policy.models.values()):
        return []
    return [
        "    # 4. arms of an experiment: 100 slots, divided by percent",
        f"    http-request set-var(txn.salt) var(txn.model),map_str({Map.ARMS_SALT.file})",
        "    http-request set-var(txn.subject) src",
        "    http-request set-var(txn.subject) var(txn.user) if { var(txn.user) -m found }",
        "    http-request set-var(txn.arm) var(txn.salt),concat(:,txn.subject),xxh32,mod(100)",
        "    http-request set-var(txn.slot) var(txn.model),concat(:,txn.arm)",
        f"    http-request set-var(txn.pool) var(txn.slot),map_str({Map.ARMS.file}) if {_UNDECIDED}",
        _because("arm"),
    ]


def _latency(topology: Topology, policy: RouterPolicy) -> list[str]:
    """Select the cheapest pool whose recent p95 meets the objective, or else the fastest."""
    asked = "{ var(txn.objective) -m int gt 0 }"
    lines: list[str] = []
    for model in sorted({*topology.models, *policy.models}):
        pools = candidates(topology, policy, model)
        if len(pools) < 2:
            continue
        here = f"{asked} {_UNDECIDED} {{ var(txn.model) -m str {model} }}"
        lines += [
            f"    http-request set-var(txn.pool) str({pool}) if {here}"
            f" {{ str({pool}),map_str_int({Map.P95_MS.file},{UNKNOWN_MS}),sub(txn.objective) le 0 }}"
            for pool in pools
        ]
        lines.append(f"    http-request set-var(txn.pool) var(txn.model),map_str({Map.FASTEST.file}) if {here}")
    if not lines:
        return []
    return [
        "    # 5. latency objective: the cheapest pool that holds it, else the fastest",
        "    http-request set-var(txn.objective) req.hdr_val(x-max-latency-ms)",
        *lines,
        _because("latency"),
    ]


def _by_class(policy: RouterPolicy) -> list[str]:
    if not any(model.by_class for model in policy.models.values()):
        return []
    return [
        "    # 6. class of the key or user",
        f"    http-request set-var(txn.class) str({policy.default_class}) if !{{ var(txn.class) -m found }}",
        f"    http-request set-var(txn.slot) var(txn.model),concat(:,txn.class) if {_UNDECIDED}",
        f"    http-request set-var(txn.pool) var(txn.slot),map_str({Map.CLASSES.file}) if {_UNDECIDED}",
        _because("class"),
    ]


def _backend(topology: Topology, policy: RouterPolicy) -> list[str]:
    lines = ["    # the pool's backend; in a pool that fills in order, the first capacity type with a free slot"]
    for pool in topology.pools:
        if policy.pool(pool.name).placement is not Placement.RESERVED_FIRST:
            continue
        here = f"{{ var(txn.pool) -m str {pool.name} }}"
        ordered = capacity_backends(pool.name)
        # the first with a free slot; else the first with a replica (its queue); else the last (its activator)
        lines += [
            f"    use_backend {name} if {here} {{ nbsrv({name}) gt 0 }} {{ be_conn_free({name}) gt 0 }}"
            for name in ordered
        ]
        lines += [f"    use_backend {name} if {here} {{ nbsrv({name}) gt 0 }}" for name in ordered]
        lines.append(f"    use_backend {ordered[-1]} if {here}")
    return [*lines, f"    use_backend {backend_of('%[var(txn.pool)]')}"]
