"""Running a router: invalid input, several controllers, metering, a real client library, TLS."""

import contextlib
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from gpufleet.toolchain.folders import ROOT
from serving.router.controller import RouterBusyError, exclusive_state
from serving.router.keys import ApiKey, KeysError, digest, parse_keys
from serving.router.policy import ModelPolicy, PoolPolicy, RouterPolicy, parse_policy
from serving.router.settings import RouterPaths
from tests.fixtures.metrics_text import value
from tests.fixtures.router.router import NETWORK, FakeFleet, Router, document, running

CHAT = {"name": "chat", "model": "models/chat"}
OVERRIDE = {"x-model-override": "chat"}


def test_a_client_library_chats_streams_and_understands_errors(steady: Router) -> None:
    with openai.OpenAI(base_url=f"{steady.url}/v1", api_key="sk-x", max_retries=0) as client:
        answer = client.chat.completions.create(model="chat", messages=[{"role": "user", "content": "hi"}])
        assert f"from {NETWORK}." in (answer.choices[0].message.content or "")
        stream = client.chat.completions.create(
            model="chat", messages=[{"role": "user", "content": "hi"}], stream=True, extra_body={"n": 5}
        )
        assert "".join(event.choices[0].delta.content or "" for event in stream) == "0 1 2 3 4 "
        assert [model.id for model in client.models.list()] == ["chat"]
        with pytest.raises(openai.NotFoundError) as unknown:
            client.chat.completions.create(model="nope", messages=[])
        assert unknown.value.code == "model_not_found"
        steady.replicas["i-1"].does.delay_s = 1.0
        with pytest.raises(openai.APITimeoutError):
            client.with_options(timeout=0.2).chat.completions.create(model="chat", messages=[])
        steady.replicas["i-1"].does.delay_s = 0.0
    # later tests count what reaches the replica
    steady.until(lambda: steady.sessions("i-1") == 0, "the request that was given up has ended")


def test_a_client_library_gets_embeddings(steady: Router) -> None:
    with openai.OpenAI(base_url=f"{steady.url}/v1", api_key="sk-x", max_retries=0) as client:
        answer = client.embeddings.create(model="chat", input=["a", "b"], encoding_format="float")
    assert [len(one.embedding) for one in answer.data] == [3, 3]
    assert steady.replicas["i-1"].does.seen[-1]["path"] == "/v1/embeddings"


def test_a_client_library_understands_every_refusal(router: Router) -> None:
    router.fleet.written = document(CHAT, {"name": "empty", "model": "models/empty"})
    router.fleet.clients = (
        ApiKey(sha256=digest("sk-1"), name="team-a"),
        ApiKey(sha256=digest("sk-2"), name="team-b", requests_per_10s=1),
    )
    router.fleet.rules = RouterPolicy(
        require_key=True, trusted_networks=("10.0.0.0/8",), pools={"empty": PoolPolicy(hold_seconds=0)}
    )
    router.add("i-1")
    router.ready()
    large: list[Any] = [{"role": "user", "content": "x" * 300_000}]
    refusals: tuple[tuple[type[openai.APIStatusError], int, str, str, dict[str, Any]], ...] = (
        (openai.AuthenticationError, 401, "invalid_api_key", "sk-other", {}),
        (openai.APIStatusError, 413, "body_too_large", "sk-1", {"messages": large}),
        (openai.NotFoundError, 404, "model_not_found", "sk-1", {"model": "nope"}),
        (openai.PermissionDeniedError, 403, "override_not_allowed", "sk-1", {"extra_headers": OVERRIDE}),
        (openai.InternalServerError, 503, "no_replica_ready", "sk-1", {"model": "empty"}),
        (openai.RateLimitError, 429, "rate_limit_exceeded", "sk-2", {}),
    )
    with openai.OpenAI(base_url=f"{router.url}/v1", api_key="sk-1", max_retries=0) as client:
        named = client.chat.completions.create(model="chat", messages=large, extra_headers={"x-model": "chat"})
        assert named.choices
        for kind, status, code, key, changed in refusals:
            refusal = _refusal(client.with_options(api_key=key), {"model": "chat", "messages": []} | changed)
            assert (type(refusal), refusal.status_code, refusal.code) == (kind, status, code)
            assert refusal.request_id
            assert ("retry-after" in refusal.response.headers) == (status in (429, 503))


def _refusal(client: openai.OpenAI, asked: dict[str, Any]) -> openai.APIStatusError:
    """Send requests until one is refused: a limit takes two requests, or more when a 10-second window ends."""
    for _ in range(20):
        try:
            client.chat.completions.create(**asked)
        except openai.APIStatusError as error:
            return error
    pytest.fail(f"never refused: {asked}")


def test_a_body_of_300_mb_is_refused_without_the_model_header_and_forwarded_with_it(steady: Router) -> None:
    piece = b" " * 1_000_000
    head = {"content-length": "300000000"}

    def body() -> Iterator[bytes]:
        for _ in range(300):
            yield piece

    with httpx.Client(timeout=120) as client:
        page = f"{steady.url}/v1/chat/completions"
        # refused while it is still sending: also correct
        with contextlib.suppress(httpx.NetworkError, httpx.RemoteProtocolError):
            assert client.post(page, content=body(), headers=head).status_code == 413
        assert client.post(page, content=body(), headers={**head, "x-model": "chat"}).status_code == 200
    assert steady.replicas["i-1"].does.seen[-1]["body_bytes"] == 300_000_000
    assert steady.chat().status_code == 200


def test_use_is_metered_by_key(router: Router) -> None:
    router.fleet.written = document(CHAT)
    router.fleet.clients = (ApiKey(sha256=digest("sk-1"), name="team-a"),)
    router.add("i-1").does.prompt_tokens = 1_234_567
    router.ready()
    for _ in range(3):
        assert router.chat(headers={"authorization": "Bearer sk-1"}).status_code == 200
    page = router.url.replace(":8080", ":8404") + "/router/metrics"

    def total(what: str) -> float | None:
        name = f"gpufleet_router_key_{what}_total"
        return value(router.client.get(page).text, name, key="team-a", model="chat", pool="chat")

    router.until(lambda: total("output_tokens") == 9, "9 tokens")
    assert total("input_tokens") == 3_703_701
    assert total("requests") == 3
    assert "haproxy_backend_active_servers" in router.client.get(page.replace("/router", "")).text


def test_prompts_and_keys_are_never_written_to_files(router: Router) -> None:
    router.fleet.written = document(CHAT)
    router.fleet.key = "5ec7e7" * 10 + "5ec7"
    router.add("i-1")
    router.ready()
    secret = "my-very-secret-prompt"
    body = {"model": "chat", "messages": [{"role": "user", "content": secret * 20}]}
    answer = router.client.post(
        f"{router.url}/v1/chat/completions?q={secret}", json=body, headers={"authorization": "Bearer sk-very-secret"}
    )
    assert answer.status_code == 200
    router.until(lambda: router.controller.meter.lines > 0, "the log is read")
    for path in router.controller.paths.state.rglob("*"):
        with contextlib.suppress(OSError):  # not a file, or one that the controller has just replaced
            text = path.read_bytes()
            assert b"very-secret" not in text, path
            assert router.fleet.key.encode() not in text or path == router.controller.paths.engine_key
    assert router.controller.paths.engine_key.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param([], id="nothing"),
        pytest.param([("Authorization", "Bearer sk-client")], id="a key"),
        pytest.param([("Authorization", "Bearer a"), ("authorization", "Basic b")], id="two"),
        pytest.param([("x-gpufleet-engine-key", "a"), ("Connection", "authorization")], id="a header to be dropped"),
    ],
)
def test_engines_receive_the_routers_key_and_never_the_clients_key(
    steady: Router, headers: list[tuple[str, str]]
) -> None:
    body = {"model": "chat", "messages": [{"role": "user", "content": "hello"}]}
    answer = steady.client.post(f"{steady.url}/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200
    assert steady.replicas["i-1"].does.seen[-1]["headers"]["authorization"] == f"Bearer {steady.fleet.key}"


def test_a_policy_that_haproxy_or_the_fleet_refuses_changes_nothing(router: Router) -> None:
    router.fleet.written = document(CHAT)
    router.add("i-1")
    router.ready()
    router.fleet.rules = RouterPolicy(models={"chat": ModelPolicy(default="nowhere")})
    router.until(lambda: bool(router.controller.problems.get("policy")), "the unknown pool is reported")
    assert "nowhere" in router.controller.problems["policy"]
    assert router.chat().status_code == 200
    page = router.client.get(router.url.replace(":8080", ":8404") + "/router/metrics").text
    assert 'gpufleet_router_problem{what="policy"} 1' in page
    router.fleet.rules = RouterPolicy()
    router.until(lambda: not router.controller.problems.get("policy"), "it is well again")


@pytest.mark.parametrize(
    "ids",
    [
        ["a status=200 key=other"],
        ["good,b status=200"],
        ["good", "b status=200"],
        ["b status=200", "good"],
        ["x" * 65],
    ],
    ids=["space", "after-a-comma", "second-of-two", "first-of-two", "long"],
)
def test_a_request_id_that_would_add_log_fields_is_replaced(steady: Router, ids: list[str]) -> None:
    head = [("content-type", "application/json"), *(("x-request-id", text) for text in ids)]
    answer = steady.client.post(f"{steady.url}/v1/chat/completions", content=b'{"model": "chat"}', headers=head)
    assert answer.status_code == 200
    made = answer.headers["x-request-id"]
    assert re.fullmatch(r"[0-9A-F]{8}\d+-\d+", made)
    assert steady.replicas["i-1"].does.seen[-1]["headers"]["x-request-id"] == made
    counted = re.compile(rf"^request t=\S+ id={made} status=200 backend=", re.MULTILINE)
    log = steady.controller.paths.access_log
    steady.until(lambda: counted.search(log.read_text()) is not None, "its line is whole")


def test_a_request_id_of_the_client_is_passed_through(steady: Router) -> None:
    assert steady.chat(headers={"x-request-id": "Job-7.a_b"}).headers["x-request-id"] == "Job-7.a_b"
    assert steady.replicas["i-1"].does.seen[-1]["headers"]["x-request-id"] == "Job-7.a_b"


def test_slow_senders_are_cut_off(steady: Router) -> None:
    address, _, port = steady.url.removeprefix("http://").rpartition(":")
    with socket.create_connection((address, int(port)), timeout=30) as client:
        client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        assert b"408" in client.recv(4096).split(b"\r\n")[0]


@pytest.mark.parametrize(
    "head",
    [
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5 6\r\n\r\nhello",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nbad header: 1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"0\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 90000\r\n"
        b"x-model: chat\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    ],
    ids=[
        "two-lengths",
        "odd-length",
        "odd-encoding",
        "space-in-name",
        "tls-to-plain",
        "no-length",
        "length-and-chunks",
        "chunks-and-length",
    ],
)
def test_smuggled_requests_are_refused(steady: Router, head: bytes) -> None:
    before = steady.replicas["i-1"].does.requests
    address, _, port = steady.url.removeprefix("http://").rpartition(":")
    with socket.create_connection((address, int(port)), timeout=30) as client:
        client.sendall(head)
        assert b" 400 " in client.recv(4096).split(b"\r\n")[0]
    assert steady.replicas["i-1"].does.requests == before


def test_two_routers_agree_and_either_may_be_killed(tmp_path: Path) -> None:
    fleet = FakeFleet()
    with running(tmp_path / "a", fleet) as first, running(tmp_path / "b", fleet) as second:
        fleet.written = document(CHAT)
        for n in range(4):
            first.add(f"i-{n}")
        first.ready()
        for n in range(4):
            second.until(lambda n=n: second._full(f"i-{n}"), f"i-{n} at the second")  # noqa: SLF001
        chosen = {}
        for session in range(24):
            headers = {"x-session-id": f"s{session}"}
            chosen[session] = first.chat(headers=headers).headers["x-gpufleet-replica"]
            assert second.chat(headers=headers).headers["x-gpufleet-replica"] == chosen[session]
        assert len(set(chosen.values())) >= 3
        first.controller.haproxy.stop(0)
        assert second.chat().status_code == 200


def test_a_state_folder_has_one_controller(tmp_path: Path) -> None:
    paths = RouterPaths(state=tmp_path / "state")
    with exclusive_state(paths), pytest.raises(RouterBusyError, match=str(os.getpid())), exclusive_state(paths):
        pass


def test_haproxy_dies_with_its_controller(tmp_path: Path) -> None:
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from gpufleet.logs import SILENT\n"
        "from serving.router.controller import Controller\n"
        "from serving.router.settings import RouterPaths, RouterSettings\n"
        "from tests.fixtures.router.router import FakeFleet\n"
        "state = Path(sys.argv[1])\n"
        f"settings = RouterSettings(bind='{NETWORK}.250.1:8080', metrics_bind='{NETWORK}.250.1:8404')\n"
        "c = Controller(FakeFleet(), settings, RouterPaths(state=state), SILENT)\n"
        "c.start()\n"
        "print(c.haproxy.admin.process_id(), flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
    ) as controller:
        assert controller.stdout is not None
        worker = 0
        for line in controller.stdout:
            if line.strip().isdigit():
                worker = int(line)
                break
        assert worker
        controller.send_signal(signal.SIGKILL)
        controller.wait(60)
    end = time.monotonic() + 60
    while Path(f"/proc/{worker}").exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert not Path(f"/proc/{worker}").exists()


def test_a_tls_certificate_is_renewed_without_interruption(tmp_path: Path) -> None:
    certificate = tmp_path / "given.pem"
    _make_certificate(certificate, "first")
    with running(tmp_path, certificate=str(certificate)) as router:
        router.fleet.written = document(CHAT)
        replica = router.add("i-1")
        router.ready()
        context = ssl.create_default_context(cafile=str(certificate))
        context.check_hostname = False
        url = router.url.replace("http://", "https://")
        with httpx.Client(verify=context, timeout=60) as client:
            body = {"model": "chat", "messages": []}
            assert client.post(f"{url}/v1/chat/completions", json=body).status_code == 200
            _make_certificate(certificate, "second")
            host, _, port = url.removeprefix("https://").rpartition(":")
            router.until(lambda: _served_name(host, int(port)) == "second", "the new certificate is served")
            assert client.post(f"{url}/v1/chat/completions", json=body).status_code == 200
        assert replica.does.requests == 2
        certificate.write_text("no certificate")
        router.until(
            lambda: bool(router.controller.problems.get("certificate")), "the invalid certificate is reported"
        )
        assert _served_name(host, int(port)) == "second"


def _make_certificate(path: Path, name: str) -> None:
    key, cert = path.with_suffix(".key"), path.with_suffix(".crt")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", f"/CN={name}", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True, timeout=180)
    path.write_text(cert.read_text() + key.read_text())


def _served_name(host: str, port: int) -> str:
    pem = ssl.get_server_certificate((host, port), timeout=60)
    done = subprocess.run(
        ["openssl", "x509", "-noout", "-subject"], input=pem, capture_output=True, text=True, check=True, timeout=180
    )
    return done.stdout.strip().rpartition("CN = ")[2]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("abc name", "line 1"),
        (f"# c\n{'0' * 64} name color=red", "line 2"),
        (f"{'0' * 64} a\n{'0' * 64} b", "twice"),
        (f"{'0' * 64} bad/name", "line 1"),
    ],
    ids=["no-hash", "unknown-word", "twice", "name"],
)
def test_errors_about_keys_do_not_show_them(text: str, wrong: str) -> None:
    with pytest.raises(KeysError, match=wrong) as error:
        parse_keys(text)
    assert "0000" not in str(error.value)


def test_keys_are_read() -> None:
    (key,) = parse_keys(f"{digest('sk')} team-a class=premium per-10s=50  # comment\n\n")
    assert (key.name, key.user_class, key.requests_per_10s) == ("team-a", "premium", 50)


@pytest.mark.parametrize("models", ["", ",chat", "chat,", "chat,,x", "a b", "../x", "chat\u00e9"])
def test_models_of_a_key_must_be_valid_names(models: str) -> None:
    with pytest.raises(KeysError, match="line 1"):
        parse_keys(f"{digest('sk')} team-a models={models}\n")
    (key,) = parse_keys(f"{digest('sk')} team-a per-10s=5 models=chat,org/legal-7b\n")
    assert key.models == ("chat", "org/legal-7b")


def test_the_policy_in_the_documentation_is_valid() -> None:
    page = (ROOT / "docs" / "router.md").read_text()
    text = page.partition("```json\n")[2].partition("```")[0]
    policy = parse_policy(text, "docs/router.md")
    assert policy.models["chat"].canary is not None
    assert RouterPolicy.model_fields.keys() == json.loads(text).keys()
