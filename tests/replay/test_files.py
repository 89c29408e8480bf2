"""Tests of unusual history files: unambiguous ones are accepted, others are refused with a line number."""

import gzip
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from replay import histories, rows
from replay.rows import TraceError

MARKET = "time_s,zone,available\n" + "".join(f"{t * 100},{zone},5\n" for t in range(30) for zone in "ab")
ACTIVITY = "time_s,replica,gpu_active,requests_running,requests_waiting,tokens_total,pool\n"


def loaded(path: Path) -> tuple[object, ...]:
    found = histories.load_market(path)
    return tuple(found.zones), found.times.tolist(), found.available.tolist()


ODD: dict[str, Callable[[str], bytes]] = {
    "byte order mark": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "lines of Windows": lambda text: text.replace("\n", "\r\n").encode(),
    "no last line end": lambda text: text.rstrip("\n").encode(),
    "empty lines": lambda text: text.replace("\n", "\n\n").encode(),
    "gzip under a plain name": lambda text: gzip.compress(text.encode()),
    "gzip in two parts": lambda text: gzip.compress(text[:100].encode()) + gzip.compress(text[100:].encode()),
    "quoted": lambda text: "\n".join(",".join(f'"{f}"' for f in x.split(",")) for x in text.split()).encode(),
    "an additional column": lambda text: text.replace("\n", ",x y\n").encode(),
    "a comma at each end": lambda text: text.replace("\n", ",\n").encode(),
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_unusual_but_valid_files_read_the_same(tmp_path: Path, odd: Callable[[str], bytes]) -> None:
    plain, other = tmp_path / "plain.csv", tmp_path / "other.csv"
    plain.write_text(MARKET)
    other.write_bytes(odd(MARKET))
    assert loaded(other) == loaded(plain)


def test_a_plain_file_may_have_a_compressed_suffix(tmp_path: Path) -> None:
    path = tmp_path / "market.csv.gz"
    path.write_text(MARKET)
    assert loaded(path)[0] == ("a", "b")


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda raw: gzip.compress(raw)[:-20], "cannot be read"),
        (lambda raw: gzip.compress(raw)[:5], "cannot be read"),
        (lambda raw: b"", "line 1: the header is missing"),
        (lambda raw: gzip.compress(b""), "line 1: the header is missing"),
        (lambda raw: raw[:-4], "line 61: 2 fields"),
        (lambda raw: raw.replace(b"300,a", b"300,\xe4"), "line 8: zone is not valid UTF-8"),
        (lambda raw: raw.replace(b"300,a", b"300,1,\xe4"), "line 8: 4 fields; the header has 3"),
        (lambda raw: raw.replace(b"\n300,a", b"\nnan,a"), "line 8: time_s is nan; expected a number"),
        (lambda raw: raw.replace(b"\n300,a", b"\n,a"), "line 8: time_s is empty; expected a number"),
        (lambda raw: raw.replace(b"\n300,a", b"\n300,"), "line 8: zone is empty; expected a name"),
        (lambda raw: raw.replace(b"\n300", b"\n" + b"x" * 10**6), "is 'x{60}'… .1000000 characters.; expected"),
    ],
    ids=["gzip cut off", "gzip cut off at once", "empty", "empty gzip", "half a last line", "another encoding",
         "another encoding and a field too many", "no time", "an empty time", "an empty name",
         "a field of a million"],
)  # fmt: skip
def test_an_error_in_a_file_is_located(tmp_path: Path, broken: Callable[[bytes], bytes], message: str) -> None:
    path = tmp_path / "market.csv"
    path.write_bytes(broken(MARKET.encode()))
    with pytest.raises(TraceError, match=message):
        histories.load_market(path)


def test_a_pipe_is_refused_without_blocking(tmp_path: Path) -> None:
    path = tmp_path / "market.csv"
    os.mkfifo(path)
    with pytest.raises(TraceError, match=r"market\.csv is a pipe, .* write it to a file first"):
        histories.load_market(path)


def test_rates_of_one_time_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rates.csv"
    path.write_text("time_s,rate_rps\n60,1\n60,2\n")
    with pytest.raises(TraceError, match=r"rates\.csv: contains only one time"):
        histories.load_requests(path, None)


def with_empty_lines(chance: random.Random) -> list[str]:
    return [x for t in range(300) for x in (f"{t * 100},a,5\n", *chance.choices(["\n", "\r\n"], k=t % 3))]


@pytest.mark.parametrize(
    "bad", ["x,a,3", "5,a", "0,a,3", "99999,a,", "99999,a,nan"], ids=["no number", "short", "back", "empty", "NaN"]
)
def test_the_line_of_an_invalid_row_counts_empty_lines(tmp_path: Path, bad: str) -> None:
    chance = random.Random(bad)
    lines = with_empty_lines(chance)
    place = chance.randrange(100, len(lines))
    path = tmp_path / "market.csv"
    path.write_text("time_s,zone,available\n" + "".join([*lines[:place], bad + "\n", *lines[place:]]), newline="")
    with pytest.raises(TraceError, match=f"line {place + 2}: "):
        histories.load_market(path)


def test_lines_are_counted_across_any_block_boundary() -> None:
    chance = random.Random(1)
    written, lines = with_empty_lines(chance), rows.LineNumbers()
    left = written
    while left:
        cut = chance.randrange(1, 9)
        lines.note("".join(left[:cut]).encode())
        left = left[cut:]
    full = [number for number, line in enumerate(written, 2) if line.strip()]
    assert [lines.of(row) for row in range(len(full))] == full


def test_a_zone_may_have_unlimited_capacity(tmp_path: Path) -> None:
    path = tmp_path / "market.csv"
    path.write_text(MARKET.replace(",5", ",1e30", 1).replace(",5", ",2.9", 1))
    found = histories.load_market(path).available
    assert found[0].tolist() == [histories.MAX_AVAILABLE, 2.9]


def test_a_row_may_omit_its_pool_and_a_replica_without_one_is_a_separate_pool(tmp_path: Path) -> None:
    path = tmp_path / "activity.csv"
    path.write_text(f"{ACTIVITY}0,a,0,0,0,1,p\n0,b,0,0,0,1,\n60,a,0,0,0,1,\n60,b,0,0,0,1,\n60,c,0,0,0,1,p\n")
    found = histories.load_activity(path, 0.01)
    assert found.pools is not None
    assert [found.pool_names[pool] for pool in found.pools] == ["p", "b", "p"]
    path.write_text(f"{ACTIVITY}0,a,0,0,0,1,\n60,a,0,0,0,1,\n")
    assert histories.load_activity(path, 0.01).pools is None


def test_a_replica_that_appears_late_existed_without_reports(tmp_path: Path) -> None:
    path = tmp_path / "activity.csv"
    path.write_text(f"{ACTIVITY}0,a,0,0,0,1,p\n60,a,0,0,0,1,p\n60,b,0.5,1,0,7,p\n120,a,0,0,0,1,p\n120,b,0,0,0,7,p\n")
    found = histories.load_activity(path, 0.01)
    assert found.reported.tolist() == [[True, False], [True, True], [True, True]]
    assert found.work.tolist() == [[False, False], [False, True], [False, False]]
    late = tmp_path / "market.csv"
    late.write_text("time_s,zone,available\n0,a,3\n100,a,3\n100,b,2\n200,a,3\n200,b,2\n")
    assert histories.load_market(late).available.tolist() == [[3, 0], [3, 2], [3, 2]]


@pytest.mark.parametrize("first", [0.0, -5000.0, 1.7e9 + 0.125], ids=["from 0", "below 0", "since 1970"])
def test_requests_count_from_their_first_one(tmp_path: Path, first: float) -> None:
    path = tmp_path / "requests.csv"
    path.write_text("time_s,input_tokens,output_tokens\n" + "".join(f"{first + 5 * t:f},80,20\n" for t in range(9)))
    assert histories.load_requests(path, None).tokens.tolist() == [200, 200, 200, 200, 100]


@pytest.mark.parametrize(
    "load", [histories.load_market, lambda path: histories.load_activity(path, 0.01)], ids=["market", "activity"]
)
@pytest.mark.parametrize(
    ("first", "step"),
    [
        pytest.param(1.7e12, 6e4, id="milliseconds since 1970"),
        pytest.param(1.7e18, 6e10, id="nanoseconds since 1970"),
        pytest.param(0.0, 6e10, id="nanoseconds from 0"),
        pytest.param(-1e300, 1.0, id="before every date"),
    ],
)
def test_a_history_that_is_not_in_seconds_is_reported(
    tmp_path: Path, load: Callable[[Path], object], first: float, step: float
) -> None:
    path = tmp_path / "history.csv"
    header = "time_s,zone,available,replica,gpu_active,requests_running,requests_waiting,tokens_total"
    path.write_text("\n".join([header, *(f"{first + step * tick!r},a,1,a,0,0,0,1" for tick in range(9))]) + "\n")
    with pytest.raises(TraceError, match=r"line (2|4): time_s .* expected seconds"):
        load(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("time_s,rate_rps\n0,1\n10,1\n1e11,1\n1.1e11,1\n", "line 5: time_s 1.1e.11", id="nanoseconds"),
        pytest.param("time_s,rate_rps\n0,1\n10,1.7e308\n", "line 3: rate_rps is 1.7e.308; .* to 1e.09", id="a rate"),
        pytest.param(
            "time_s,input_tokens,output_tokens\n0,1e300,1\n",
            "line 2: input_tokens is 1e.300; .* to 1e.12",
            id="tokens",
        ),
    ],
)
def test_excessive_requests_are_refused_with_their_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "requests.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=message):
        histories.load_requests(path, None)
