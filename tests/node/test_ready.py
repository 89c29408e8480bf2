"""The group hears once that an instance serves."""

from datetime import timedelta
from pathlib import Path

from gpufleet.domain import tags
from tests.node.world import Machine


def test_the_group_hears_once_that_the_instance_serves(bucket: Path, tmp_path: Path) -> None:
    machine = Machine(root=tmp_path, bucket=bucket)
    machine.pass_time(timedelta(seconds=2))
    assert machine.cloud.ready_said == 0
    assert machine.boot.run()
    machine.pass_time(timedelta(seconds=60))
    assert machine.cloud.ready_said == 1


def test_a_cloud_that_does_not_listen_is_told_again(bucket: Path, tmp_path: Path) -> None:
    machine = Machine(root=tmp_path, bucket=bucket)
    assert machine.boot.run()
    machine.cloud.refuses = True
    machine.pass_time(timedelta(seconds=30))
    assert "lifecycle hook" in machine.life.status()["warnings"]
    machine.cloud.refuses = False
    machine.pass_time(timedelta(seconds=11))
    assert machine.cloud.ready_said == 1
    assert "lifecycle hook" not in machine.life.status()["warnings"]


def test_a_clock_that_is_set_back_puts_off_neither_tags_nor_the_word_to_the_group(
    bucket: Path, tmp_path: Path
) -> None:
    machine = Machine(root=tmp_path, bucket=bucket)
    assert machine.boot.run()
    machine.cloud.refuses = True
    machine.pass_time(timedelta(seconds=5))
    machine.cloud.refuses = False
    machine.clock.now -= timedelta(hours=1)
    machine.pass_time(timedelta(seconds=12))
    assert machine.cloud.written[-1] == {tags.PHASE: "ready"}
    assert machine.cloud.ready_said == 1


def test_an_engine_that_is_not_well_is_not_in_service(bucket: Path, tmp_path: Path) -> None:
    machine = Machine(root=tmp_path, bucket=bucket)
    assert machine.boot.run()
    machine.engine.silent = True
    machine.pass_time(timedelta(seconds=30))
    assert machine.cloud.ready_said == 0
