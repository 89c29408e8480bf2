"""Recorded histories from CSV files, read block by block into columns."""

import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as arrow
import pyarrow.csv

arrow_csv: Any = pyarrow.csv
"""It has no types of its own."""

Floats = npt.NDArray[np.floating[Any]]
EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
"""Histories count seconds from any moment; this Saturday is ours."""
CLOCKS: Final = 1e-4
"""Seconds that a history's clock and ours, which counts whole microseconds, may differ."""
_UNIX: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNIX_FROM: Final = 1e9
"""A history that begins so late counts as Unix does; this was in 2001."""
EARLIEST: Final = -1e10
LATEST: Final = 1e11
"""Seconds between which a history lies, with room for what is reckoned from it: a date ends with the year 9999."""
Codes = npt.NDArray[np.int32]
Indices = npt.NDArray[np.int64]

BLOCK: Final = 8 << 20
"""Bytes read at a time."""
_HEAD: Final = 1 << 16
"""Bytes that hold the header."""
_GZIP: Final = b"\x1f\x8b"
_SHOWN: Final = 60
"""Characters of a field that an error says."""


class TraceError(ValueError):
    """A history that cannot be read. Says which file, which line, and what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a history."""

    name: str
    text: bool = False
    """A name, not a number."""
    optional: bool = False
    """The column may be absent."""
    empty: bool = False
    """A field may be empty: not reported; NaN, or the code -1."""
    small: bool = False
    """Kept in single precision."""
    at_least: float | None = 0.0
    """The least number that makes sense; None: any."""
    at_most: float | None = None
    """The largest one; None: any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A history as columns: numbers, and names as codes into `names`."""

    path: str
    numbers: dict[str, Floats]
    codes: dict[str, Codes]
    names: Mapping[str, Sequence[str]]
    lines: "Lines"


@dataclass(slots=True)
class Lines:
    """Which line of its file a row is on. Empty lines hold no row."""

    empty: list[int] = field(default_factory=list[int])
    """Their numbers, ascending."""
    _next: int = 2
    """Number of the line that is noted next; the header is line 1."""

    def note(self, block: bytes) -> None:
        """Take in whole lines, in the order of the file."""
        if block.startswith((b"\n", b"\r\n")) or b"\n\n" in block or b"\n\r\n" in block:
            found = block.split(b"\n")[: block.count(b"\n")]
            self.empty += [self._next + n for n, line in enumerate(found) if line in (b"", b"\r")]
        self._next += block.count(b"\n")

    def of(self, row: int) -> int:
        """The line of a row, which are counted from 0."""
        line = row + 2
        for empty in self.empty:
            if empty > line:
                break
            line += 1
        return line


def read(path: Path, columns: Sequence[Column]) -> Table:
    """The whole history. Raises TraceError for a missing column or a bad field, with its line number."""
    present = _header(path, columns)
    wanted = [column for column in columns if column.name in present]
    parts: dict[str, list[npt.NDArray[Any]]] = {column.name: [] for column in wanted}
    known: dict[str, dict[str, int]] = {c.name: {} for c in wanted if c.text}
    first, lines = 0, Lines()
    for batch in _batches(path, wanted, lines):
        for column in wanted:
            raw = batch.column(column.name)
            if raw.null_count and not column.empty:
                row = first + int(np.flatnonzero(np.asarray(raw.is_null()))[0])
                _refuse(path, column, lines.of(row), f"is empty{_wanted(column)}")
            if column.text:
                parts[column.name].append(_codes(raw, known[column.name]))
            else:
                parts[column.name].append(_floats(path, column, raw, first, lines))
        first += batch.num_rows
    if first == 0:
        raise TraceError(f"{path}: no rows below the header")
    return Table(
        path=str(path),
        numbers={column.name: np.concatenate(parts[column.name]) for column in wanted if not column.text},
        codes={name: np.concatenate(parts[name]) for name in known},
        names={name: tuple(found) for name, found in known.items()},
        lines=lines,
    )


def origin(first: float) -> datetime:
    """The moment from which a history counts, known by its first row's time: schedules hold by the clock."""
    return _UNIX if first >= _UNIX_FROM else EPOCH


def no_doubles(table: Table, column: str, tick: Codes, codes: Codes, names: int) -> None:
    """Refuse two rows of one name of `column` (given as `codes` below `names`) at a tick. Raises TraceError."""
    seen = np.zeros((int(tick[-1]) + 1, names), dtype=np.bool_)
    seen[tick, codes] = True
    if np.count_nonzero(seen) == len(tick):
        return
    keys = tick.astype(np.int64) * names + codes
    order = np.argsort(keys, kind="stable")
    row = int(order[np.flatnonzero(np.diff(keys[order]) == 0)[0] + 1])
    name = table.names[column][int(codes[row])]
    raise TraceError(
        f"{table.path}, line {table.lines.of(row)}: {column} {name!r} has two rows at the same time; keep one"
    )


def ticks(table: Table, times: Floats) -> Indices:
    """Where each tick's rows begin, and the end. Raises TraceError where time runs backwards or is no seconds."""
    beyond = np.flatnonzero((times < EARLIEST) | (times > LATEST))
    if len(beyond):
        row = int(beyond[0])
        where = f"{table.path}, line {table.lines.of(row)}"
        raise TraceError(f"{where}: time_s {times[row]:g} is beyond every date; seconds are wanted")
    steps = np.diff(times)
    back = np.flatnonzero(steps < 0)
    if len(back):
        row = int(back[0]) + 1
        raise TraceError(
            f"{table.path}, line {table.lines.of(row)}: time_s {times[row]:g} comes after {times[row - 1]:g};"
            " sort rows by time"
        )
    return np.concatenate(([0], np.flatnonzero(steps > 0) + 1, [len(times)])).astype(np.int64)


def tick_of_row(starts: Indices) -> Codes:
    """The number of each row's tick."""
    return np.repeat(np.arange(len(starts) - 1, dtype=np.int32), np.diff(starts))


def has(path: Path, column: str) -> bool:
    """Whether a history has a column. Raises TraceError when it cannot be read."""
    return column in _header(path, ())


def _header(path: Path, columns: Sequence[Column]) -> Sequence[str]:
    with _open(path) as stream:
        return _names(path, columns, _first_line(stream.read(_HEAD) or b"")[0])


@contextmanager
def _open(path: Path) -> Generator[Any]:
    if path.is_fifo():  # whoever opens a pipe once more waits for ever
        raise TraceError(f"{path} is a pipe, and a history is read more than once: write it to a file first")
    try:
        stream = arrow.input_stream(str(path), compression=_compression(path))
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error}") from error
    with stream:
        try:
            yield stream
        except OSError as error:
            raise TraceError(f"{path} cannot be read: {error}") from error


def _compression(path: Path) -> str | None:
    """What gzip wrote is known by its first two bytes, whatever the file is called; the rest by its name."""
    with path.open("rb") as file:
        if file.read(len(_GZIP)) == _GZIP:
            return "gzip"
    return None if path.suffix == ".gz" else "detect"


def _first_line(start: bytes) -> tuple[bytes, bytes]:
    """The line, and what follows it."""
    line, _, rest = start.partition(b"\n")
    return line, rest


def _names(path: Path, columns: Sequence[Column], header: bytes) -> Sequence[str]:
    line = header.decode("utf-8-sig", "replace").strip()
    if not line and columns:
        raise TraceError(f"{path}, line 1: no header; it is {','.join(column.name for column in columns)}")
    found = [name.strip().strip('"') for name in line.split(",")]
    missing = [column.name for column in columns if not column.optional and column.name not in found]
    if missing:
        wanted = ",".join(column.name for column in columns)
        raise TraceError(f"{path}, line 1: no column {', '.join(missing)}; the header is {wanted}")
    if len(set(found)) != len(found):
        raise TraceError(f"{path}, line 1: a column is named twice")
    return found


def _batches(path: Path, columns: Sequence[Column], lines: Lines) -> Iterator[Any]:
    """Block by block, each read to its end before the next one.

    The reader that streams a whole file reads ahead in threads of its own. Where a bad row ended the command, one of
    them could still be about to tell Python of a row, and the process aborted.
    """
    with _open(path) as stream:
        header, left = _first_line(stream.read(_HEAD) or b"")
        names, rows = _names(path, columns, header), 0
        while True:
            block = stream.read(BLOCK)
            # a line that is not over yet waits for its end
            end = (left := left + block).rfind(b"\n") + 1 if block else len(left)
            lines.note(left[:end])
            if left[:end].strip():
                table = _read(path, columns, names, left[:end], lambda number, rows=rows: lines.of(rows + number - 1))
                yield from table.to_batches()
                rows += table.num_rows
            left = left[end:]
            if not block:
                return


def _read(
    path: Path, columns: Sequence[Column], names: Sequence[str], block: bytes, line_of: Callable[[int], int]
) -> Any:
    """The rows of a block. `line_of`: the line of one of them, which are counted from 1 here."""
    kinds = {c.name: arrow.dictionary(arrow.int32(), arrow.string()) if c.text else arrow.float64() for c in columns}
    options: dict[str, Any] = {
        # no threads: only then does the reader know a bad row's number
        "read_options": arrow_csv.ReadOptions(block_size=len(block) + 1, use_threads=False, column_names=names),
        "convert_options": arrow_csv.ConvertOptions(
            include_columns=[c.name for c in columns], column_types=kinds, null_values=[""], strings_can_be_null=True
        ),
    }
    try:
        return arrow_csv.read_csv(arrow.BufferReader(block), **options)
    except arrow.ArrowInvalid as error:
        raise TraceError(_in_words(path, str(error), names, line_of)) from error


def _in_words(path: Path, error: str, names: Sequence[str], line_of: Callable[[int], int]) -> str:
    """`In CSV column #2: Row #3: CSV conversion error to double: invalid value 'x'` with the line and the name.

    Rows that are too short or too long are told by the same way: whom Arrow asks about one must take it as UTF-8.
    """
    if found := re.search(r"column #(\d+): Row #(\d+): .*invalid (?:value '(.*)'|UTF8)", error, re.DOTALL):
        what = "is no UTF-8" if found[3] is None else f"is {_short(found[3])}, a number is wanted"
        return f"{path}, line {line_of(int(found[2]))}: {names[int(found[1])]} {what}"
    if found := re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+)", error):
        return f"{path}, line {line_of(int(found[1]))}: {found[3]} fields, the header has {found[2]}"
    return f"{path}: {error}"


def _short(field: str) -> str:
    """A field may be a whole file whose quotes do not end."""
    return repr(field) if len(field) <= _SHOWN else f"{field[:_SHOWN]!r}… ({len(field)} characters)"


def _floats(path: Path, column: Column, raw: Any, first: int, lines: Lines) -> Floats:
    values: Floats = raw.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
    odd = np.isinf(values) | (np.isnan(values) & ~np.asarray(raw.is_null()))
    if column.at_least is not None:
        odd |= values < column.at_least
    if column.at_most is not None:
        odd |= values > column.at_most
    if odd.any():
        row = int(np.flatnonzero(odd)[0])
        _refuse(path, column, lines.of(first + row), f"is {values[row]:g}{_wanted(column)}")
    if not column.small:
        return values
    with np.errstate(over="ignore"):  # more than single precision holds is infinite: as much work as any
        return values.astype(np.float32)


def _wanted(column: Column) -> str:
    if column.text:
        return ", a name is wanted"
    if column.at_least is None:
        return ", a number is wanted"
    to = "up" if column.at_most is None else f"to {column.at_most:g}"
    return f", a number from {column.at_least:g} {to} is wanted"


def _codes(raw: Any, known: dict[str, int]) -> Codes:
    own = [known.setdefault(name, len(known)) for name in raw.dictionary.to_pylist()]
    # what is not reported has no index; the last entry stands for it
    return np.asarray([*own, -1], dtype=np.int32)[np.asarray(raw.indices.fill_null(-1))]


def _refuse(path: Path, column: Column, line: int, what: str) -> NoReturn:
    raise TraceError(f"{path}, line {line}: {column.name} {what}")
