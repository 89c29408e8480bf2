"""Reads recorded histories from CSV files, block by block, into columns."""

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
"""pyarrow has no type annotations for this module."""

Floats = npt.NDArray[np.floating[Any]]
EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
"""Start of histories that count seconds from an unknown time. It is a Saturday."""
CLOCKS: Final = 1e-4
"""Tolerance in seconds between a history's times and datetime, which has microsecond precision."""
_UNIX: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNIX_FROM: Final = 1e9
"""A history that starts at or after this number of seconds uses Unix time. The number is a date in 2001."""
EARLIEST: Final = -1e10
LATEST: Final = 1e11
"""Limit of a history's times in seconds, with a margin for later calculations. datetime ends with the year 9999."""
Codes = npt.NDArray[np.int32]
Indices = npt.NDArray[np.int64]

BLOCK: Final = 8 << 20
"""Number of bytes per read."""
_HEAD: Final = 1 << 16
"""Maximum size of the header in bytes."""
_GZIP: Final = b"\x1f\x8b"
_SHOWN: Final = 60
"""Maximum number of characters of a field in an error message."""


class TraceError(ValueError):
    """A history that cannot be read. The message contains the file, the line and the error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a history."""

    name: str
    text: bool = False
    """The column contains names, not numbers."""
    optional: bool = False
    """The column may be absent."""
    empty: bool = False
    """A field may be empty, which means not reported. It becomes NaN, or code -1."""
    small: bool = False
    """Stored in single precision."""
    at_least: float | None = 0.0
    """Smallest valid number. None: any."""
    at_most: float | None = None
    """Largest valid number. None: any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A history as columns. Names are stored as indices into `names`."""

    path: str
    numbers: dict[str, Floats]
    codes: dict[str, Codes]
    names: Mapping[str, Sequence[str]]
    lines: "LineNumbers"


@dataclass(slots=True)
class LineNumbers:
    """Maps rows to line numbers. Empty lines contain no row."""

    empty: list[int] = field(default_factory=list[int])
    """Numbers of empty lines, in ascending order."""
    _next: int = 2
    """Number of the next line. The header is line 1."""

    def note(self, block: bytes) -> None:
        """Record whole lines, in the order of the file."""
        if block.startswith((b"\n", b"\r\n")) or b"\n\n" in block or b"\n\r\n" in block:
            found = block.split(b"\n")[: block.count(b"\n")]
            self.empty += [self._next + n for n, line in enumerate(found) if line in (b"", b"\r")]
        self._next += block.count(b"\n")

    def of(self, row: int) -> int:
        """Return the line number of a row. Rows count from 0."""
        line = row + 2
        for empty in self.empty:
            if empty > line:
                break
            line += 1
        return line


def read(path: Path, columns: Sequence[Column]) -> Table:
    """Read the whole history. Raises TraceError with a line number for a missing column or an invalid field."""
    present = _header(path, columns)
    wanted = [column for column in columns if column.name in present]
    parts: dict[str, list[npt.NDArray[Any]]] = {column.name: [] for column in wanted}
    known: dict[str, dict[str, int]] = {c.name: {} for c in wanted if c.text}
    first, lines = 0, LineNumbers()
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
        raise TraceError(f"{path}: has no rows below the header")
    return Table(
        path=str(path),
        numbers={column.name: np.concatenate(parts[column.name]) for column in wanted if not column.text},
        codes={name: np.concatenate(parts[name]) for name in known},
        names={name: tuple(found) for name, found in known.items()},
        lines=lines,
    )


def origin(first: float) -> datetime:
    """Return the start time of a history, based on the time of its first row. Schedules depend on the time of day."""
    return _UNIX if first >= _UNIX_FROM else EPOCH


def check_unique(table: Table, column: str, tick: Codes, codes: Codes, names: int) -> None:
    """Raise TraceError if two rows of a tick have the same name in `column`. The names are given as `codes` below
    `names`.
    """
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
    """Return the first row of each tick, and the number of rows. Raises TraceError if times decrease or are not
    seconds.
    """
    beyond = np.flatnonzero((times < EARLIEST) | (times > LATEST))
    if len(beyond):
        row = int(beyond[0])
        where = f"{table.path}, line {table.lines.of(row)}"
        raise TraceError(f"{where}: time_s {times[row]:g} is not a valid date; expected seconds")
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
    """Return the tick of each row."""
    return np.repeat(np.arange(len(starts) - 1, dtype=np.int32), np.diff(starts))


def has(path: Path, column: str) -> bool:
    """Return whether a history has a column. Raises TraceError if the file cannot be read."""
    return column in _header(path, ())


def _header(path: Path, columns: Sequence[Column]) -> Sequence[str]:
    with _open(path) as stream:
        return _names(path, columns, _first_line(stream.read(_HEAD) or b"")[0])


@contextmanager
def _open(path: Path) -> Generator[Any]:
    if path.is_fifo():  # a second open of a pipe would block forever
        raise TraceError(f"{path} is a pipe, but a history is read more than once: write it to a file first")
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
    """Return the compression. gzip is detected by its first two bytes, whatever the file's name; other formats by the
    name.
    """
    with path.open("rb") as file:
        if file.read(len(_GZIP)) == _GZIP:
            return "gzip"
    return None if path.suffix == ".gz" else "detect"


def _first_line(start: bytes) -> tuple[bytes, bytes]:
    """Return the first line and the remaining bytes."""
    line, _, rest = start.partition(b"\n")
    return line, rest


def _names(path: Path, columns: Sequence[Column], header: bytes) -> Sequence[str]:
    line = header.decode("utf-8-sig", "replace").strip()
    if not line and columns:
        raise TraceError(
            f"{path}, line 1: the header is missing; expected {','.join(column.name for column in columns)}"
        )
    found = [name.strip().strip('"') for name in line.split(",")]
    missing = [column.name for column in columns if not column.optional and column.name not in found]
    if missing:
        wanted = ",".join(column.name for column in columns)
        raise TraceError(f"{path}, line 1: column {', '.join(missing)} is missing; expected the header {wanted}")
    if len(set(found)) != len(found):
        raise TraceError(f"{path}, line 1: the header names a column twice")
    return found


def _batches(path: Path, columns: Sequence[Column], lines: LineNumbers) -> Iterator[Any]:
    """Yield tables block by block. Each block is fully read before the next.

    Arrow's streaming reader reads ahead in its own threads. When an invalid row ended the command, such a thread
    could still call into Python, and the process aborted.
    """
    with _open(path) as stream:
        header, left = _first_line(stream.read(_HEAD) or b"")
        names, rows = _names(path, columns, header), 0
        while True:
            block = stream.read(BLOCK)
            # an incomplete line remains for the next block
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
    """Return the rows of a block. `line_of` maps a row, counted from 1, to its line."""
    kinds = {c.name: arrow.dictionary(arrow.int32(), arrow.string()) if c.text else arrow.float64() for c in columns}
    options: dict[str, Any] = {
        # without threads, because only then does the reader report the number of an invalid row
        "read_options": arrow_csv.ReadOptions(block_size=len(block) + 1, use_threads=False, column_names=names),
        "convert_options": arrow_csv.ConvertOptions(
            include_columns=[c.name for c in columns], column_types=kinds, null_values=[""], strings_can_be_null=True
        ),
    }
    try:
        return arrow_csv.read_csv(arrow.BufferReader(block), **options)
    except arrow.ArrowInvalid as error:
        raise TraceError(_message(path, str(error), names, line_of)) from error


def _message(path: Path, error: str, names: Sequence[str], line_of: Callable[[int], int]) -> str:
    """Replace the row and column of an Arrow error with line and name: `In CSV column #2: Row #3: CSV conversion
    error to double: invalid value 'x'`.

    Rows with too few or too many fields use the same error path, because Arrow's handler for such rows requires valid
    UTF-8.
    """
    if found := re.search(r"column #(\d+): Row #(\d+): .*invalid (?:value '(.*)'|UTF8)", error, re.DOTALL):
        what = "is not valid UTF-8" if found[3] is None else f"is {_short(found[3])}; expected a number"
        return f"{path}, line {line_of(int(found[2]))}: {names[int(found[1])]} {what}"
    if found := re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+)", error):
        return f"{path}, line {line_of(int(found[1]))}: {found[3]} fields; the header has {found[2]}"
    return f"{path}: {error}"


def _short(field: str) -> str:
    """Shorten a field. With an unclosed quote, a field may contain the rest of the file."""
    return repr(field) if len(field) <= _SHOWN else f"{field[:_SHOWN]!r}… ({len(field)} characters)"


def _floats(path: Path, column: Column, raw: Any, first: int, lines: LineNumbers) -> Floats:
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
    with np.errstate(over="ignore"):  # a value above single precision becomes infinite, which is valid
        return values.astype(np.float32)


def _wanted(column: Column) -> str:
    if column.text:
        return "; expected a name"
    if column.at_least is None:
        return "; expected a number"
    to = "up" if column.at_most is None else f"to {column.at_most:g}"
    return f"; expected a number from {column.at_least:g} {to}"


def _codes(raw: Any, known: dict[str, int]) -> Codes:
    own = [known.setdefault(name, len(known)) for name in raw.dictionary.to_pylist()]
    # a missing value has no index; it uses the last entry
    return np.asarray([*own, -1], dtype=np.int32)[np.asarray(raw.indices.fill_null(-1))]


def _refuse(path: Path, column: Column, line: int, what: str) -> NoReturn:
    raise TraceError(f"{path}, line {line}: {column.name} {what}")
