"""Faults around a router: hung engines, refused configurations, expired certificates, log rotation."""

import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from gpufleet.domain.model import CapacityType
from serving.router.certificates import SELF, Certificate, CertificateError
from serving.router.policy import Balance, ModelPolicy, PoolPolicy, RouterPolicy
from serving.router.settings import RouterPaths
from serving.router.sources import REPLICAS_VALID_S, RouterSources
from serving.router.topology import PoolEntry, Topology
from serving.router.topology import Replica as Server
from tests.fixtures.router.replica import Replica
from tests.fixtures.router.router import NETWORK, FakeFleet, Router, document, instance, running

CHAT = {"name": "chat", "model": "models/chat"}


def test_a_hung_engine_gets_no_requests(tmp_path: Path) -> None:
    with running(tmp_path, check_timeout=timedelta(seconds=1)) as router:
        router.fleet.written = document(CHAT)
        hung = router.add("i-1")
        router.add("i-2")
        router.ready()
        hung.does.hung = True
        router.until(
            lambda: (router.server("i-1") or "").startswith("DOWN"), "i-1 is DOWN, though its agent reports up"
        )
        assert {router.chat().headers["x-gpufleet-replica"] for _ in range(10)} == {"i-2"}
        hung.does.hung = False
        router.ready("i-1")


def test_clients_of_a_machine_that_vanished_get_an_error_soon(tmp_path: Path) -> None:
    with running(tmp_path, unreachable_limit=timedelta(seconds=1)) as router, ThreadPoolExecutor(1) as pool:
        router.fleet.written = document(CHAT)
        lost, _ = router.add("i-1"), router.add("i-2")
        router.ready()
        lost.does.hold = True
        waiting = None
        while lost.does.running == 0:  # round robin: one request of two
            waiting = pool.submit(router.chat)
            router.until(
                lambda waiting=waiting: waiting.done() or lost.does.running == 1, "a replica received the request"
            )
        lost.vanish()
        assert {router.chat().status_code for _ in range(20)} == {200}, "the other one takes them"
        router.until(lambda: (router.server("i-1") or "").startswith("DOWN"), "i-1 is DOWN")
        assert waiting is not None
        with pytest.raises(httpx.RemoteProtocolError):  # the router ends it: no response would ever arrive
            waiting.result(60)
        cut = {"level": "info", "event": "replica", "resource": "pool_chat/i-1", "outcome": "cut"}
        router.until(lambda: cut in router.log.lines, "it is logged")


def test_a_new_replica_starts_slowly(tmp_path: Path) -> None:
    with running(tmp_path, slow_start=timedelta(minutes=10)) as router:
        router.fleet.written = document(CHAT)
        router.add("i-1")
        router.until(lambda: (router.server("i-1") or "").startswith("UP"), "i-1 is UP")
        (server,) = router.controller.haproxy.admin.servers()
        assert server.weight < 50
        assert router.chat().status_code == 200


def test_when_all_replicas_fail_half_of_them_stay_in_use(router: Router) -> None:
    router.fleet.written = document(CHAT)
    router.fleet.rules = RouterPolicy(pools={"chat": PoolPolicy(balance=Balance.LEAST)})
    replicas = [router.add(f"i-{n}") for n in range(4)]
    router.ready()
    for replica in replicas:
        replica.does.status = 500

    def excluded() -> list[str]:
        router.chat()
        return [server.name for server in router.controller.haproxy.admin.servers() if server.weight == 0]

    router.until(lambda: len(excluded()) == 2, "two are excluded")
    for _ in range(60):
        assert len(excluded()) <= 2
    assert router.chat().status_code == 500, "a replica still answers"


def test_a_configuration_that_haproxy_refuses_changes_nothing_and_is_reported(router: Router) -> None:
    router.fleet.written = document(CHAT)
    router.add("i-1")
    router.ready()
    before = router.controller.paths.config.read_text()
    maps = router.controller.haproxy.admin.ask("show map maps/models.map")
    # more arguments than HAProxy accepts in one line
    networks = tuple(f"10.0.{n}.0/24" for n in range(100))
    router.fleet.rules = RouterPolicy(trusted_networks=networks, models={"gpt": ModelPolicy(default="chat")})
    router.until(lambda: bool(router.controller.problems.get("config")), "it is refused")
    assert "too many words" in router.controller.problems["config"], "the problem contains HAProxy's message"
    assert router.controller.paths.config.read_text() == before
    assert router.controller.haproxy.admin.ask("show map maps/models.map") == maps
    # each new attempt writes the maps for HAProxy's check, and restores them when it is refused
    on_disk = router.controller.paths.state / "maps/models.map"
    router.until(lambda: "gpt" not in on_disk.read_text(), "the maps are restored")
    assert router.chat().status_code == 200
    page = router.url.replace(":8080", ":8404") + "/router/metrics"
    assert 'gpufleet_router_problem{what="config"} 1' in router.client.get(page).text
    router.fleet.rules = RouterPolicy(models={"gpt": ModelPolicy(default="chat")})
    router.until(lambda: not router.controller.problems.get("config"), "it is well again")
    router.until(lambda: router.chat("gpt").status_code == 200, "the corrected one is in force")


def test_a_full_disk_and_an_internal_error_do_not_stop_the_router(router: Router) -> None:
    router.fleet.written = document(CHAT)
    router.add("i-1")
    router.ready()
    status = router.controller.paths.status
    router.until(status.exists, "a status")
    status.unlink(missing_ok=True)
    while not status.is_dir():
        try:
            status.mkdir()
        except FileExistsError:
            status.unlink(missing_ok=True)
    router.until(lambda: "write_status:" in router.controller.problems.get("pass", ""), "the problem is reported")
    router.add("i-2")
    router.ready("i-2")
    assert router.chat().status_code == 200
    status.rmdir()
    router.until(lambda: not router.controller.problems["pass"], "it is well again")


def test_a_router_that_starts_without_its_document_uses_the_last_one(tmp_path: Path) -> None:
    fleet = FakeFleet(written=document(CHAT), rules=RouterPolicy(models={"gpt": ModelPolicy(default="chat")}))
    with running(tmp_path, fleet) as router:
        router.until(router.controller.paths.last_document.exists, "it is kept")
        router.until(router.controller.paths.last_policy.exists, "the policy, too")
    fleet.document_error = "no such object"
    with running(tmp_path, fleet) as router:
        router.add("i-1")
        router.ready()
        assert router.chat("gpt").status_code == 200
        problems = router.controller.problems
        router.until(lambda: "keeping the last valid one" in problems.get("document", ""), "the problem is reported")


def test_a_router_that_starts_without_an_inventory_uses_the_last_replicas(tmp_path: Path) -> None:
    address = f"{NETWORK}.251.10"
    fleet = FakeFleet(written=document(CHAT), machines={"i-1": instance("i-1", address, "chat")})
    with Replica(address):
        with running(tmp_path, fleet) as first:
            first.ready("i-1")
            fleet.inventory_error = "RequestLimitExceeded"
            first.controller.haproxy.stop(0)
            first.until(lambda: (first.server("i-1") or "").startswith("UP"), "only HAProxy restarted")
            assert first.chat().status_code == 200
        with running(tmp_path, fleet) as second:
            assert second.chat().headers["x-gpufleet-replica"] == "i-1"
            problems = second.controller.problems
            second.until(lambda: "RequestLimitExceeded" in problems.get("inventory", ""), "the problem is reported")
            assert second.chat().headers["x-gpufleet-replica"] == "i-1"
            fleet.inventory_error = ""
            del fleet.machines["i-1"]
            second.until(lambda: second.server("i-1") is None, "the inventory is there again and knows better")


@pytest.mark.parametrize(
    ("age_s", "pool", "text", "found"),
    [
        pytest.param(30, "chat", None, 1, id="lately"),
        pytest.param(REPLICAS_VALID_S + 1, "chat", None, 0, id="the address may be another machine's"),
        pytest.param(-30, "chat", None, 0, id="of the future"),
        pytest.param(30, "other", None, 0, id="of a pool that is gone"),
        pytest.param(30, "chat", "", 0, id="a file cut short"),
        pytest.param(30, "chat", '{"at": 1, "replicas": [{}]}', 0, id="words of another version"),
    ],
)
def test_which_replicas_of_the_last_router_are_used(
    tmp_path: Path, age_s: float, pool: str, text: str | None, found: int
) -> None:
    notes = dict[str, str]()
    paths = RouterPaths(state=tmp_path)
    sources = RouterSources(FakeFleet(), paths, lambda what, problem: notes.update({what: problem}))
    replica = Server(pool=pool, name="i-1", address="10.0.0.7", capacity_type=CapacityType.SPOT)
    sources.keep_replicas((replica,), 1000.0)
    if text is not None:
        paths.last_replicas.write_text(text)
    topology = Topology(environment="prod", pools=(PoolEntry(name="chat", served_name="chat"),))
    assert sources.kept_replicas(topology, 1000.0 + age_s) == (replica,) * found
    assert bool(notes.get("kept replicas")) == (text is not None)


def test_metering_continues_when_the_log_is_renamed_under_haproxy(router: Router) -> None:
    router.fleet.written = document(CHAT)
    router.add("i-1")
    router.ready()
    meter, log = router.controller.meter, router.controller.paths.access_log
    assert router.chat().status_code == 200
    router.until(lambda: meter.lines == 1, "one is counted")
    log.rename(log.with_name("access.log.1"))
    log.touch()  # as logrotate's `create` does; HAProxy keeps writing to the renamed file
    for _ in range(3):
        assert router.chat().status_code == 200
    router.until(lambda: meter.lines == 4, "four are counted")
    assert log.stat().st_size == 0


def test_only_the_routers_own_user_can_access_its_sockets_and_files(router: Router) -> None:
    state = router.controller.paths.state
    for name in ("admin.sock", "inner.sock", "activator.sock", "controller.sock"):
        mode = (state / name).stat().st_mode & 0o777
        assert mode == 0o600, name
    assert "stats socket unix@" in (text := router.controller.paths.config.read_text())
    assert text.count("stats socket") == 1
    assert router.client.get(f"{router.url}/router/metrics").status_code == 404


def test_a_self_signed_certificate(tmp_path: Path) -> None:
    with running(tmp_path, certificate=SELF) as router:
        router.fleet.written = document(CHAT)
        router.add("i-1")
        router.ready()
        state = router.controller.paths.state
        context = ssl.create_default_context(cafile=str(state / "router.pem"))
        context.check_hostname = False
        with httpx.Client(verify=context, timeout=30) as client:
            url = router.url.replace("http://", "https://")
            assert client.post(f"{url}/v1/chat/completions", json={"model": "chat"}).status_code == 200


def test_an_expired_or_invalid_certificate_is_not_used(tmp_path: Path) -> None:
    own = Certificate(SELF, tmp_path)
    own.prepare(time.time())
    first, ends = (tmp_path / "router.pem").read_text(), own.ends
    assert ends is not None
    given = Certificate(str(tmp_path / "router.pem"), tmp_path)
    with pytest.raises(CertificateError, match="has expired"):
        given.prepare(ends + 1)
    own.prepare(ends - timedelta(days=40).total_seconds())
    assert (tmp_path / "router.pem").read_text() == first
    own.prepare(ends - timedelta(days=20).total_seconds())
    assert (tmp_path / "router.pem").read_text() != first, "its own certificate is renewed in time"
    bad = tmp_path / "bad.pem"
    for text, message in (("nothing", "no private key"), ("PRIVATE KEY", "contains no certificate")):
        bad.write_text(text)
        with pytest.raises(CertificateError, match=message):
            Certificate(str(bad), tmp_path).prepare(0)
    assert (tmp_path / "router.pem").stat().st_mode & 0o077 == 0
