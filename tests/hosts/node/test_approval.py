"""In production an agent starts, fetches and switches to approved revisions only, whoever wrote served.json."""

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpufleet.domain.model import Phase
from localcloud import tiny_model
from serving.cache import manifest as manifests
from serving.cache import publish
from serving.cache.approval import Approval, approve
from serving.cache.disk import Cache
from serving.cache.store import FolderReader, FolderStore, ObjectStore
from serving.cache.sync import served_digest
from tests.fixtures.node.fake_node import FakeCloud, Machine, settings

MODEL = "models/chat"


@pytest.fixture
def own_bucket(bucket: Path, tmp_path: Path) -> Path:
    """A copy of the bucket that a test may change."""
    shutil.copytree(bucket, tmp_path / "bucket")
    return tmp_path / "bucket"


def machine_of(environment: str, bucket: Path, folder: Path) -> Machine:
    return Machine(root=folder / "root", bucket=bucket, settings=settings(environment=environment))


def allow(bucket: Path, digest: str) -> None:
    given = Approval(digest=digest, by="ada", at=datetime(2026, 11, 21, tzinfo=UTC))
    approve(FolderStore(bucket), given, model=MODEL)


def served(bucket: Path) -> str:
    return served_digest(FolderStore(bucket), MODEL)


def another(bucket: Path, folder: Path) -> str:
    """Publish a second revision in the bucket that is not served."""
    tiny_model.make(folder / "second", tiny_model.TinyModelShape(seed=2))
    manifest = manifests.describe(folder / "second", name="chat", revision="second")
    publish.add(FolderStore(bucket), folder / "second", manifest)
    return manifest.digest


def test_an_unapproved_revision_is_neither_fetched_nor_started(own_bucket: Path, tmp_path: Path) -> None:
    machine = machine_of("prod", own_bucket, tmp_path)
    assert not machine.boot.run()
    assert machine.state.phase is Phase.FAILED
    assert f"{served(own_bucket)[:12]}: is not approved for prod" in machine.state.status()["error"]
    assert machine.units.calls == []
    assert Cache(machine.boot.cache_root).find_digest(served(own_bucket)) is None


def test_an_approved_revision_boots_and_other_environments_need_no_approval(own_bucket: Path, tmp_path: Path) -> None:
    assert machine_of("dev", own_bucket, tmp_path / "dev").boot.run()
    allow(own_bucket, served(own_bucket))
    assert machine_of("prod", own_bucket, tmp_path / "prod").boot.run()


def test_an_approval_of_the_previous_release_counts(own_bucket: Path, tmp_path: Path) -> None:
    digest = served(own_bucket)
    allow(own_bucket, digest)
    (own_bucket / "approvals/chat" / f"{digest}.json").rename(own_bucket / MODEL / digest / "approved.json")
    assert machine_of("prod", own_bucket, tmp_path).boot.run()


def test_served_json_and_orders_cannot_switch_to_an_unapproved_revision(own_bucket: Path, tmp_path: Path) -> None:
    first = served(own_bucket)
    allow(own_bucket, first)
    machine = machine_of("prod", own_bucket, tmp_path)
    assert machine.boot.run()
    evil = another(own_bucket, tmp_path)
    publish.rollout(FolderStore(own_bucket), name="chat", digest=evil)
    assert "is not approved for prod" in str(machine.switch.follow())
    machine.switch.change(evil)
    assert "is not approved for prod" in machine.state.status()["switch_error"]
    assert machine.state.digest == first
    assert machine.state.ready
    assert Cache(machine.boot.cache_root).find_digest(evil) is None, "not even fetched"
    allow(own_bucket, evil)
    assert machine.switch.follow() is None
    machine.switch.change(evil)
    assert machine.state.digest == evil


def test_the_approval_of_another_revision_does_not_count(own_bucket: Path, tmp_path: Path) -> None:
    evil = another(own_bucket, tmp_path)
    allow(own_bucket, evil)
    notes = own_bucket / "approvals/chat"
    (notes / f"{evil}.json").rename(notes / f"{served(own_bucket)}.json")
    machine = machine_of("prod", own_bucket, tmp_path)
    assert not machine.boot.run()
    assert "approves" in machine.state.status()["error"]


class S3Like(FolderStore):
    """Behaves like S3 for a caller without the list permission: it refuses access to missing objects."""

    def connect(self) -> FolderReader:
        return _Refusing(self._root)


class _Refusing(FolderReader):
    def size_and_version(self, key: str) -> tuple[int, str]:
        try:
            return super().size_and_version(key)
        except FileNotFoundError as error:
            raise PermissionError("403") from error


class S3LikeCloud(FakeCloud):
    def store(self, bucket: str) -> ObjectStore:
        return S3Like(self.bucket)


@pytest.mark.parametrize("old", [True, False], ids=["a note of the release before", "no note"])
def test_without_the_list_permission_a_refusal_means_no_approval(own_bucket: Path, tmp_path: Path, old: bool) -> None:
    digest = served(own_bucket)
    if old:
        allow(own_bucket, digest)
        (own_bucket / "approvals/chat" / f"{digest}.json").rename(own_bucket / MODEL / digest / "approved.json")
    machine = machine_of("prod", own_bucket, tmp_path)
    machine.boot.services.cloud = S3LikeCloud(own_bucket)
    assert machine.boot.run() is old
