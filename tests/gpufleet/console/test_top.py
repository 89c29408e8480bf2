"""The live screen: order, filter, keys, and a width of at most 80 columns."""

from dataclasses import replace
from io import StringIO

import pytest
from rich.cells import cell_len
from rich.console import Console

from gpufleet.console.top import Screen, Sort, after_key, draw, rows
from gpufleet.console.view import FleetView, InstanceSignals
from gpufleet.domain.decisions import Reason
from tests.fixtures.console.fleet import busy_view, instance


def shown(screen: Screen, view: FleetView, lines: int = 20) -> str:
    out = StringIO()
    Console(file=out, width=80, color_system=None).print(draw(screen, [view], view.read.acts, lines))
    return out.getvalue()


def uneven() -> FleetView:
    """Three instances, each first in one of the sort orders; one has no metrics."""
    view = busy_view()
    signals = (
        InstanceSignals(gpu_active=0.9, waiting=1, kv_cache=0.1, tokens_per_second=5),
        InstanceSignals(gpu_active=0.1, waiting=0, kv_cache=0.9, tokens_per_second=1),
        InstanceSignals(gpu_active=0.5, waiting=7, kv_cache=0.5, tokens_per_second=9),
        InstanceSignals(),
    )
    return replace(view, instances=[replace(one, signals=s) for one, s in zip(view.instances, signals, strict=False)])


@pytest.mark.parametrize(
    ("sort", "order"),
    [(Sort.IDLE, [1, 2, 0, 3]), (Sort.WAITING, [2, 0, 1, 3]), (Sort.KV, [1, 2, 0, 3]), (Sort.TOKENS, [2, 0, 1, 3])],
)
def test_sort_order_with_unknown_values_last(sort: Sort, order: list[int]) -> None:
    found = [one.id for _, one in rows(Screen(sort=sort), [uneven()])]
    assert found == [instance(number).id for number in order]


def test_screen_fits_and_explains_the_keys() -> None:
    text = shown(Screen(), busy_view())
    assert max(cell_len(line) for line in text.splitlines()) <= 80
    assert "enter decisions" in text
    assert "…" not in text
    assert text.count("i-0000000000") == 20, "as many lines as fit"


def test_keys_move_select_and_return() -> None:
    views = [uneven()]
    screen = Screen()
    for key, row in (("up", 0), ("down", 1), ("j", 2), ("down", 3), ("down", 3), ("k", 2)):
        screen = after_key(screen, key, views)
        assert screen.row == row
    chosen = after_key(screen, "enter", views)
    assert chosen.chosen == instance(0).id
    assert f"{Reason.FALLBACK.sentence}: 3 to 5" in shown(chosen, views[0])
    assert after_key(chosen, "escape", views).chosen == ""
    assert after_key(screen, "q", views).over


def test_each_line_names_its_fleet_if_there_are_several() -> None:
    one = uneven()
    views = [one, replace(one, name="aws/dev/us-east-1")]
    out = StringIO()
    Console(file=out, width=80, color_system=None).print(draw(Screen(), views, (), 20))
    lines = out.getvalue().splitlines()
    assert [line.split(" 09:")[0] for line in lines[1:3]] == ["1 aws/prod/us-east-1", "2 aws/dev/us-east-1"]
    assert [line[:2] for line in lines if " i-000" in line] == ["1 ", "2 "] * 4
    assert max(cell_len(line) for line in lines) <= 80
    assert "#" not in shown(Screen(), one)


def test_sorts_and_pools_cycle() -> None:
    views = [busy_view()]
    screen = Screen()
    for kind in [*list(Sort)[1:], Sort.IDLE]:
        screen = after_key(screen, "s", views)
        assert screen.sort is kind
    assert after_key(screen, "p", views).pool == "chat"
    assert len(rows(after_key(screen, "p", views), views)) == 140, "the orphan is in no pool"
    assert after_key(after_key(screen, "p", views), "p", views).pool == ""


def test_terminated_instance_is_reported() -> None:
    assert "i-gone is no longer listed" in shown(Screen(chosen="i-gone"), busy_view())


def test_empty_fleet_is_not_an_error() -> None:
    view = replace(busy_view(), instances=[])
    assert after_key(Screen(), "enter", [view]).chosen == ""
    assert "0 instances" in shown(Screen(row=5), view)
