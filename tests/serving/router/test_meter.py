"""Counting from the log: each line once, whatever happens to the file."""

import json
from pathlib import Path

import pytest

from serving.router.exporter import RouterSnapshot, metrics
from serving.router.meter import Meter
from tests.fixtures.metrics_text import value

LINE = (
    "request t={t} id=x status={status} backend=pool_chat server=i-1 end={end} pool=chat model=chat why=default"
    " key={key}"
    " class=standard arrive=0 queue=10 connect=1 first=40 all={all} in=300 out=900 retries=0 tokens={tokens}\n"
)


def line(
    t: float = 1000.5, status: int = 200, key: str = "-", ms: int = 110, tokens: int | None = 3, end: str = "----"
) -> str:
    counted = "-" if tokens is None else f"{tokens}/{tokens * 2}"
    return LINE.format(t=t, status=status, key=key, all=ms, tokens=counted, end=end)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "access.log"


def meter(log: Path) -> Meter:
    return Meter(log, log.parent / "meter.json")


def append(path: Path, *lines: str) -> None:
    with path.open("a") as file:
        file.writelines(lines)


def test_usage_is_counted_by_key_and_model(log: Path) -> None:
    append(log, line(key="gold"), line(key="gold", tokens=None), line(status=503), "Server pool_chat/i-1 is UP.\n")
    counted = meter(log)
    assert counted.read() == 3
    gold = counted.use[("gold", "chat", "chat")]
    assert (gold.requests, gold.tokens_in, gold.tokens_out, gold.unmetered) == (2, 3, 6, 1)
    assert gold.replica_ms == 200, "110 ms less 10 ms in the queue, twice"
    assert counted.use[("", "chat", "chat")].failed == 1


def test_nothing_is_counted_twice(log: Path) -> None:
    append(log, line(), line())
    first = meter(log)
    assert first.read() == 2
    assert first.read() == 0
    append(log, line())
    second = meter(log)
    assert second.read() == 1
    assert second.use[("", "chat", "chat")].requests == 3
    assert second.all_ms["chat"].counts == meter(log).all_ms["chat"].counts


def test_a_partial_line_is_counted_when_it_is_complete(log: Path) -> None:
    append(log, line(), line()[:40])
    counted = meter(log)
    assert counted.read() == 1
    append(log, line()[40:])
    assert counted.read() == 1


def test_a_renamed_log_is_read_to_its_end(log: Path) -> None:
    append(log, line())
    meter(log).read()
    append(log, line())
    log.rename(log.with_name("access.log.1"))
    append(log, line())
    counted = meter(log)
    assert counted.read() == 2
    assert counted.lines == 3


def test_a_renamed_log_is_followed_while_the_file_in_its_place_is_empty(log: Path) -> None:
    append(log, line())
    counted = meter(log)
    counted.read()
    moved = log.rename(log.with_name("access.log-20261121"))
    log.touch()
    append(moved, line(), line())
    assert counted.read() == 2
    append(moved, line())
    append(log, line())
    assert meter(log).read() == 2
    assert meter(log).read() == 0


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version": 1}', '{"inode": 1, "offset": 0, "lines": 5, "use": [["k"]]}'],
    ids=["empty", "torn", "list", "nothing-in-it", "short-row"],
)  # fmt: skip
def test_lost_counters_restart_at_zero_and_the_router_continues(log: Path, text: str) -> None:
    append(log, line(), line())
    (log.parent / "meter.json").write_text(text)
    counted = meter(log)
    assert "cannot be read" in counted.lost
    assert counted.read() == 0
    append(log, line())
    assert counted.read() == 1
    assert sum(use.requests for use in meter(log).use.values()) == 1
    assert meter(log).lost == ""


def test_a_truncated_log_is_read_from_its_start(log: Path) -> None:
    append(log, line(), line())
    counted = meter(log)
    counted.read()
    log.write_text(line())
    assert counted.read() == 1


def test_disk_space_of_read_parts_of_a_large_log_is_freed(log: Path) -> None:
    append(log, *[line()] * 2000)
    counted = Meter(log, log.parent / "meter.json", free_above=100_000)
    assert counted.read() == 2000
    size, disk = log.stat().st_size, log.stat().st_blocks * 512
    assert disk < size / 2
    append(log, line())
    assert meter(log).read() == 1


def test_percentiles_use_only_recent_samples(log: Path) -> None:
    append(log, *[line(t=1000, ms=100)] * 90, *[line(t=1000, ms=900)] * 10, line(t=1200, ms=50))
    counted = meter(log)
    counted.read()
    assert counted.p95_ms(1100)["chat"] == 900
    assert counted.p95_ms(1301)["chat"] == 50
    assert "chat" not in counted.p95_ms(9999)


@pytest.mark.parametrize(
    "text",
    ["", "request", "request t=x", "Server x is DOWN", "request " + "a=b " * 30, line().replace("all=110", "all=")],
)
def test_other_lines_are_not_counted(log: Path, text: str) -> None:
    append(log, line(), text.rstrip("\n") + "\n", line())
    counted = meter(log)
    assert counted.read() == 2
    assert sum(use.requests for use in counted.use.values()) == 2


def test_unknown_values_do_not_count_as_zero(log: Path) -> None:
    unknown = line().replace("queue=10", "queue=-1").replace("first=40", "first=-1").replace("why=default", "why=-")
    append(log, unknown, line())
    counted = meter(log)
    counted.read()
    use = counted.use[("", "chat", "chat")]
    assert (use.requests, use.replica_ms) == (2, 100), "only of the one that had a place in a queue"
    assert sum(counted.first_ms["chat"].counts) == 1
    assert counted.by_reason == {("chat", "none"): 1, ("chat", "default"): 1}


def test_a_request_refused_before_the_pool_decision_has_no_reason(log: Path) -> None:
    append(log, line(status=404).replace("pool=chat model=chat", "pool=- model=-"))
    counted = meter(log)
    counted.read()
    assert counted.by_reason == {("", "none"): 1}


def test_the_page_has_cumulative_histograms(log: Path) -> None:
    append(log, line(ms=60), line(ms=60), line(ms=2000))
    counted = meter(log)
    counted.read()
    page = metrics(
        counted, RouterSnapshot(held={"chat": 2}, ready={"chat": 1}, known={"chat": 3}, excluded={"chat": 0})
    )
    buckets = "gpufleet_router_answer_seconds_bucket"
    assert [value(page, buckets, pool="chat", le=bound) for bound in ("0.05", "0.1", "+Inf")] == [0, 2, 3]
    assert value(page, "gpufleet_router_answer_seconds_count", pool="chat") == 3
    assert value(page, "gpufleet_router_answer_seconds_sum", pool="chat") == 2.12
    assert value(page, "gpufleet_held_requests", pool="chat") == 2


def test_saved_counters_are_complete(log: Path) -> None:
    append(log, line())
    meter(log).read()
    saved = json.loads((log.parent / "meter.json").read_text())
    assert saved["offset"] == log.stat().st_size
