"""Contract test of the port `FleetSource`: the files of a feed, and `FakeFleet`."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from app.feed import SEEN, FedFleet, FeedPaths, Seen
from gpufleet.domain.model import Instance
from gpufleet.settings.document import FleetDocument, render
from serving.router.policy import RouterPolicy
from serving.router.sources import FleetSource
from tests.fixtures.router.router import FakeFleet, document, instance

DOCUMENT = document({"name": "chat", "model": "models/chat"})
KEY = "0" * 64


@dataclass(kw_only=True)
class Fleet:
    """The port, and how a test changes what it reads."""

    source: FleetSource
    write_document: Callable[[FleetDocument], object]
    write_instances: Callable[[Instance], object]
    lose_instances: Callable[[], object]
    """Makes the inventory unreadable."""
    lose_key: Callable[[], object]


@pytest.fixture(params=["fake", "real"])
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Fleet:
    if request.param == "fake":
        fake = FakeFleet(inventory_error="not read yet")

        def add(one: Instance) -> None:
            fake.machines[one.id] = one
            fake.inventory_error = ""

        return Fleet(
            source=fake,
            write_document=lambda written: setattr(fake, "written", written),
            write_instances=add,
            lose_instances=lambda: setattr(fake, "inventory_error", "throttled"),
            lose_key=lambda: setattr(fake, "key_error", "no secret"),
        )
    paths = FeedPaths(folder=tmp_path)
    paths.engine_key.parent.mkdir()
    paths.engine_key.write_text(f"{KEY}\n")

    def write(one: Instance) -> None:
        paths.instances.write_bytes(SEEN.dump_json(Seen(at=time.time(), instances=(one,))))

    return Fleet(
        source=FedFleet(str(paths.document), tmp_path),
        write_document=lambda written: paths.document.write_text(render(written)),
        write_instances=write,
        lose_instances=paths.instances.unlink,
        lose_key=paths.engine_key.unlink,
    )


def test_a_missing_document_is_an_error_until_it_is_written(fleet: Fleet) -> None:
    with pytest.raises(OSError):  # noqa: PT011 - any subclass: the router keeps its last document
        fleet.source.document()
    for region in ("us-east-1", "us-east-2"):
        written = DOCUMENT.model_copy(update={"region": region})
        fleet.write_document(written)
        assert fleet.source.document() == written, "a changed document is read"


def test_without_files_the_policy_has_defaults_and_there_are_no_keys(fleet: Fleet) -> None:
    fleet.write_document(DOCUMENT)
    assert fleet.source.policy() == RouterPolicy()
    assert fleet.source.keys() == ()


def test_instances_are_a_whole_list_or_an_error(fleet: Fleet) -> None:
    with pytest.raises(OSError):  # noqa: PT011 - any subclass
        fleet.source.instances(DOCUMENT)
    one = replace(instance("i-1", "127.0.0.1", "chat"), group="chat-any")
    fleet.write_instances(one)
    assert list(fleet.source.instances(DOCUMENT)) == [one]
    fleet.lose_instances()
    with pytest.raises(OSError):  # noqa: PT011 - any subclass
        fleet.source.instances(DOCUMENT)


def test_the_engine_key_is_read_or_an_error(fleet: Fleet) -> None:
    assert fleet.source.engine_key(DOCUMENT) == KEY
    fleet.lose_key()
    with pytest.raises(OSError):  # noqa: PT011 - any subclass
        fleet.source.engine_key(DOCUMENT)
