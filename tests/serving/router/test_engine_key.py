"""The engine key of the router: when it changes, is unknown, or differs from a replica's key."""

from pathlib import Path

import pytest

from app import router_fleet
from app.router_fleet import KEY_RETRY_S, LiveFleet
from gpufleet.domain.activity import CloudError
from serving.router import engine_key
from serving.router.policy import Balance, PoolPolicy, RouterPolicy
from serving.router.sources import RouterInputs
from tests.fixtures.router.router import FakeFleet, Router, document, running

CHAT = {"name": "chat", "model": "models/chat"}
OLD, NEW = "a" * 64, "b" * 64


def test_the_key_is_not_in_the_repr_of_the_inputs() -> None:
    assert OLD not in repr(RouterInputs(engine_key=OLD))


@pytest.mark.slow
def test_a_changed_key_is_used_without_interruption(router: Router) -> None:
    router.fleet.written, router.fleet.key = document(CHAT), OLD
    does = router.add("i-1").does
    does.key = OLD
    router.ready()
    assert router.chat().status_code == 200
    with router.client.stream(
        "POST", f"{router.url}/v1/chat/completions", json={"model": "chat", "stream": True, "n": 20, "gap_s": 0.1}
    ) as answer:
        lines = answer.iter_lines()
        next(lines)
        router.fleet.key = NEW
        router.until(lambda: router.controller.reloads > 1, "it is taken into use")
        does.key = NEW
        assert [line for line in lines if line][-1] == "data: [DONE]"
    router.until(lambda: router.chat().status_code == 200, "requests come with the new key")


@pytest.mark.slow
def test_a_replica_with_another_key_is_excluded_and_clients_get_no_401(router: Router) -> None:
    router.fleet.written, router.fleet.key = document(CHAT), NEW
    router.fleet.rules = RouterPolicy(pools={"chat": PoolPolicy(balance=Balance.LEAST)})
    router.add("i-new").does.key = NEW
    router.add("i-old").does.key = OLD
    router.ready()
    statuses: set[int] = set()

    def is_excluded() -> bool:
        statuses.add(router.chat().status_code)
        return any(s.name == "i-old" and s.weight == 0 for s in router.controller.haproxy.admin.servers())

    router.until(is_excluded, "i-old is excluded")
    assert statuses <= {200, 502}
    assert 200 in {router.chat().status_code for _ in range(5)}


@pytest.mark.slow
def test_a_router_that_cannot_read_the_key_uses_the_last_one_and_reports_it(tmp_path: Path) -> None:
    fleet = FakeFleet(written=document(CHAT), key=OLD)
    with running(tmp_path, fleet) as router:
        router.until(lambda: engine_key.kept(router.controller.paths.engine_key) == OLD, "it is kept")
    fleet.key_error = "ssm:/t: AccessDenied"
    with running(tmp_path, fleet) as router:
        router.add("i-1").does.key = OLD
        router.ready()
        assert router.chat().status_code == 200
        problems = router.controller.problems
        router.until(
            lambda: "keeping the last valid one" in problems.get("engine key", ""), "the problem is reported"
        )
        fleet.key_error = ""
        router.until(lambda: not problems["engine key"], "it is well again")


def test_only_a_valid_key_is_kept_for_the_next_router(tmp_path: Path) -> None:
    path = tmp_path / engine_key.FILE_NAME
    assert engine_key.kept(path) == ""
    for key in (OLD, "", NEW):
        engine_key.write(path, key)
        assert engine_key.kept(path) == key
        assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ValueError, match="64 hexadecimal") as refused:
        engine_key.write(path, "x\n    user root")
    assert "root" not in str(refused.value)
    assert engine_key.kept(path) == NEW
    path.write_text("cut in the mid")
    assert engine_key.kept(path) == ""


def test_the_key_has_its_own_secret_and_a_silent_store_is_not_read_every_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet_document = document(CHAT).model_copy(update={"engine_key": "ssm:/gpu-fleet/test/engine-key"})
    now, held, asked = 1000.0, dict[str, str](), list[str]()

    def read(place: str, _region: str) -> str:
        asked.append(place)
        if place not in held:
            raise CloudError(f"{place}: is not there")
        return held[place]

    monkeypatch.setattr(router_fleet.secrets, "read", read)
    fleet = LiveFleet("file:///fleet.json", clock=lambda: now)
    for _ in range(3):
        with pytest.raises(OSError, match="engine-key: is not there"):
            fleet.engine_key(fleet_document)
    assert len(asked) == 1
    now += KEY_RETRY_S
    held["ssm:/gpu-fleet/test/engine-key"] = f"{OLD}\n"
    assert fleet.engine_key(fleet_document) == OLD
    held["ssm:/gpu-fleet/test/engine-key"] = NEW
    now += 1e6
    assert fleet.engine_key(fleet_document) == OLD, "it stays what it was when the router started"
    held["ssm:/gpu-fleet/test/engine-key-2"] = NEW
    assert (
        fleet.engine_key(fleet_document.model_copy(update={"engine_key": "ssm:/gpu-fleet/test/engine-key-2"})) == NEW
    )


def test_another_secret_in_the_document_is_not_sent_to_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_fleet.secrets, "read", lambda *_: "xoxb-correct-horse-battery")
    fleet_document = document(CHAT).model_copy(update={"engine_key": "ssm:/gpu-fleet/test/slack-token"})
    with pytest.raises(OSError, match="slack-token: is not an engine key") as refused:
        LiveFleet("file:///fleet.json").engine_key(fleet_document)
    assert "horse" not in str(refused.value)


def test_a_document_of_an_earlier_release_without_engine_key_is_refused() -> None:
    with pytest.raises(OSError, match="an earlier release wrote it; run `pulumi up`"):
        LiveFleet("file:///fleet.json").engine_key(document(CHAT).model_copy(update={"engine_key": None}))
