"""A list of instances that lacks a living one fails the pass; what is new, gone or somebody else's may be absent."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gpufleet.domain.activity import CloudError
from gpufleet.domain.evidence import Evidence
from gpufleet.domain.model import Instance, InstanceState
from tests.watchdogs.plain import QUIET, QUIET_ENGINE, QUIET_GPU, START, instance
from tests.watchdogs.worlds import FakeInventory, World, idle_world
from watchdogs.whole import SETTLED, check_reporting, check_whole

ONE, OTHER = instance(1), instance(2)
OLD = timedelta(minutes=10)


def fails(yes: bool) -> AbstractContextManager[Any]:
    return pytest.raises(CloudError, match=f"{OTHER.id}.*it is not whole") if yes else nullcontext()


def world_with(other: Instance | None) -> World:
    world = idle_world(2)
    del world.instances[OTHER.id]
    if other is not None:
        world.instances[OTHER.id] = other
    return world


LACKING = [
    pytest.param(OTHER, True, id="lives"),
    pytest.param(replace(OTHER, launched_at=START - SETTLED), False, id="just launched"),
    pytest.param(replace(OTHER, launched_at=START - SETTLED - timedelta(seconds=1)), True, id="settled"),
    pytest.param(replace(OTHER, state=InstanceState.TERMINATED), False, id="ended"),
    pytest.param(None, False, id="unknown"),
]


@pytest.mark.parametrize(("other", "fail"), LACKING)
def test_what_its_group_has_and_the_list_lacks(other: Instance | None, fail: bool) -> None:
    world = world_with(other)
    with fails(fail):
        check_whole(FakeInventory(world), world.groups.values(), {ONE.id: ONE}, START)


def test_a_whole_list_asks_for_nothing_more() -> None:
    world, calls = idle_world(2), list[str]()
    world.before = calls.append
    check_whole(FakeInventory(world), world.groups.values(), world.instances, START)
    check_reporting(FakeInventory(world), "test", world.evidence, world.instances, START)
    assert not calls


@pytest.mark.parametrize(
    ("other", "fail"), [*LACKING, pytest.param(replace(OTHER, environment="other"), False, id="of somebody else")]
)
def test_what_reports_and_the_list_lacks(other: Instance | None, fail: bool) -> None:
    world = world_with(other)
    with fails(fail):
        check_reporting(FakeInventory(world), "test", world.evidence, [ONE.id], START)


@pytest.mark.parametrize(
    ("evidence", "fail"),
    [
        pytest.param(replace(QUIET, gpu=None), True, id="its engine alone"),
        pytest.param(replace(QUIET, engine=None), True, id="its GPUs alone"),
        pytest.param(replace(QUIET, engine=replace(QUIET_ENGINE, newest_age=OLD)), True, id="its engine no more"),
        pytest.param(replace(QUIET, gpu=replace(QUIET_GPU, newest_age=OLD)), True, id="its GPUs no more"),
        pytest.param(
            replace(QUIET, engine=None, gpu=replace(QUIET_GPU, newest_age=OLD)), False, id="neither any more"
        ),
    ],
)
def test_either_source_reports_for_its_instance(evidence: Evidence, fail: bool) -> None:
    with fails(fail):
        check_reporting(FakeInventory(idle_world(2)), "test", {OTHER.id: evidence}, [ONE.id], START)
