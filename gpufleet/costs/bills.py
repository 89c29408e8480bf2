"""Bills of the clouds as lines per resource and time: AWS CUR (2.0 and before), FOCUS, Google's detailed export.

CSV, JSON lines (also .gz) and Parquet; a folder holds the parts of one bill. The reader keeps the lines of
instances, capacity reservations, commitments and shared resources. It adds up traffic, requests and taxes separately.

Rows of FOCUS and of Google have no id, so equal rows are separate charges and all of them count. A bill that was
exported twice into one folder is refused: two files are equal, a line id of a CUR occurs twice, or every row occurs
at least twice.

Columns: AWS "Data Exports: CUR 2.0 table dictionary"; FOCUS 1.0 to 1.2; Google Cloud Billing "Structure of Detailed
data export".
"""

import csv
import gzip
import hashlib
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, cast

from gpufleet.costs import bill_skus
from gpufleet.costs.allocation import ChargeKind
from gpufleet.domain import money

CURRENCY: Final = "USD"
_REDUCTIONS: Final = frozenset(
    ("Credit", "Refund", "EdpDiscount", "PrivateRateDiscount", "BundledDiscount", "SppDiscount")
)
"""Separate lines in AWS' reports. If they name an instance, they are part of its cost."""
_PAID_AHEAD: Final = frozenset(("SavingsPlanNegation", "SavingsPlanUpfrontFee"))
"""Amounts that the covered lines contain already, as their effective cost."""
_PIECE: Final = 1024 * 1024
_INSTANCE_USAGE: Final = re.compile(r"(BoxUsage|SpotUsage|DedicatedUsage|HostUsage|Unused(Box|Ded)|Reservation)")


class BillError(ValueError):
    """The bill cannot be used. The message names the file, the value and the remedy."""


class BillFormat(StrEnum):
    """The format of a bill."""

    CUR = "AWS Cost and Usage Report"
    FOCUS = "FOCUS"
    GOOGLE = "Google Cloud Billing export"


@dataclass(frozen=True, slots=True, kw_only=True)
class BillLine:
    """The cost of one resource in one span."""

    resource: str
    """Instance or capacity reservation; "": the line has only a sku, or is the unused part of a commitment."""
    start: datetime
    end: datetime
    usd: Decimal
    hours: Decimal | None
    """Hours of the instance or sku; None: the line counts other units (cores, GiB months)."""
    sku: str = ""
    """The price book's name; "": unknown."""
    unused: bool = False
    """Whether the line is the unused part of a Savings Plan or CUD."""
    fee: bool = False
    """Whether it is an upfront fee for a longer time, as for a Capacity Block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """A whole file."""

    form: BillFormat
    digest: str
    """SHA-256 of its bytes."""
    lines: tuple[BillLine, ...]
    others: Decimal
    """USD of lines that are not compared with the ledger: traffic, requests, taxes."""


def read_bill(path: Path) -> Bill:
    """Read a bill. Raises BillError if it is not a bill, occurs twice, or is in another currency."""
    try:
        files = _files(path)
        return _read(path, files, _digest(files))
    except (OSError, EOFError, zlib.error) as error:
        raise BillError(f"{path}: cannot be read completely: {getattr(error, 'strerror', None) or error}") from error
    except UnicodeDecodeError as error:
        raise BillError(f"{path}: expected text in UTF-8") from error
    except csv.Error as error:
        raise BillError(f"{path}: is not a valid CSV table: {error}") from error


def _files(path: Path) -> list[Path]:
    """The file, or the files of one bill in a folder."""
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.rglob("*") if file.name.endswith(_ENDINGS) and file.is_file())
    if not found:
        raise BillError(f"{path}: contains no bill: expected files that end in {', '.join(_ENDINGS)}")
    return found


def _digest(files: Iterable[Path]) -> str:
    """SHA-256 of all files in their order."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as content:
            while piece := content.read(_PIECE):
                digest.update(piece)
    return digest.hexdigest()


class _Repeats:
    """Counts equal rows, to detect a bill that was exported twice."""

    _FEW: Final = 2
    """Bills with at most this number of different rows are not checked."""

    def __init__(self) -> None:
        self._counts: Counter[bytes] = Counter()
        self._files: set[Path] = set()
        """Files that have rows."""

    def add(self, row: Mapping[str, Any], file: Path, where: str) -> None:
        """Count a row. Raises BillError if a line of AWS' CUR, which has an id, was counted before."""
        self._files.add(file)
        identity = hashlib.sha256(repr(sorted(row.items(), key=str)).encode()).digest()
        self._counts[identity] += 1
        if row.get("identity_line_item_id") and self._counts[identity] > 1:
            raise BillError(f"{where}: occurs twice in the bill; export it again into an empty folder")

    def check(self, path: Path) -> None:
        """Raises BillError if two files are equal, or if every row occurs at least twice."""
        seen: dict[str, Path] = {}
        for file in sorted(self._files):
            known = seen.setdefault(_digest([file]), file)
            if known is not file:
                raise BillError(f"{file}: is equal to {known}; remove one of them")
        if len(self._counts) > self._FEW and min(self._counts.values()) > 1:
            raise BillError(f"{path}: every row occurs twice in the bill; export it again into an empty folder")


def _read(path: Path, files: Iterable[Path], digest: str) -> Bill:
    lines: list[BillLine] = []
    others = money.ZERO
    repeats = _Repeats()
    form: BillFormat | None = None
    for file, number, raw in _numbered(files):
        row = {_name(key): value for key, value in raw.items()}
        form = form or _form(row, file)
        where = f"{file}: row {number}"
        repeats.add(row, file, where)
        try:
            line = _READERS[form](row)
        except (KeyError, ValueError, ArithmeticError, TypeError, AttributeError, RecursionError) as error:
            raise BillError(f"{where}: {_reason(error)}; nothing was taken from this bill") from error
        if line is None:
            continue
        if line.end < line.start:
            raise BillError(
                f"{where}: ends ({line.end:%Y-%m-%dT%H:%MZ}) before it starts ({line.start:%Y-%m-%dT%H:%MZ})"
            )
        if line.resource or line.sku or line.unused:
            lines.append(line)
        else:
            others = money.EXACT.add(others, line.usd)
    if form is None:
        raise BillError(f"{path}: has no rows")
    repeats.check(path)
    return Bill(form=form, digest=digest, lines=tuple(lines), others=others)


def _numbered(files: Iterable[Path]) -> Iterator[tuple[Path, int, Mapping[str, Any]]]:
    for file in files:
        for number, row in enumerate(_rows(file), 1):
            yield file, number, row


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    with path.open("rb") as file:
        magic = file.read(4)
    if magic == b"PAR1":
        yield from _parquet(path)
        return
    packed = magic[:2] == b"\x1f\x8b"
    with (gzip.open if packed else Path.open)(path, "rt", encoding="utf-8-sig", newline="") as text:
        if path.name.removesuffix(".gz").endswith(_JSON):
            yield from _json_lines(path, cast(Iterable[str], text))
            return
        _check_header(path, str(text.readline()))
        text.seek(0)
        # strict: a file that was cut inside a quoted field is an error
        reader = csv.DictReader(cast(Iterable[str], text), strict=True)
        for row in reader:
            if None in row or None in row.values():
                raise BillError(
                    f"{path}: line {reader.line_num} has more or fewer fields than the header;"
                    " the file may be incomplete"
                )
            yield row


def _check_header(path: Path, line: str) -> None:
    """Raises BillError if the columns are not separated by commas, or if a column name occurs twice."""
    other = next((mark for mark in ";\t|" if mark in line), None)
    if "," not in line and other is not None:
        raise BillError(f"{path}: expected columns separated by commas, got {other!r}; export it with commas")
    twice = [name for name, count in Counter(next(csv.reader([line]), ())).items() if count > 1]
    if twice:
        raise BillError(f"{path}: the column {twice[0]!r} occurs twice; remove one of them")


def _json_lines(path: Path, text: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    """One object on each line, as BigQuery writes tables with nested columns."""
    for number, line in enumerate(text, 1):
        try:
            row: Any = json.loads(line, parse_float=Decimal)
        except (ValueError, RecursionError) as error:
            raise BillError(f"{path}: line {number}: expected a JSON object; the file may be incomplete") from error
        if not isinstance(row, dict):
            raise BillError(f"{path}: line {number}: expected a JSON object")
        yield cast(Mapping[str, Any], row)


_JSON: Final = (".json", ".jsonl", ".ndjson")
_ENDINGS: Final = (".parquet", ".csv", ".csv.gz", *_JSON, *(f"{ending}.gz" for ending in _JSON))


def _parquet(path: Path) -> Iterator[Mapping[str, Any]]:
    import pyarrow
    from pyarrow import parquet

    reader: Any = parquet
    try:
        for batch in reader.ParquetFile(path).iter_batches():
            yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise BillError(f"{path}: is not a complete Parquet file: {error}") from error


def _name(key: str) -> str:
    """`lineItem/UsageStartDate` and `resource.name` as `line_item_usage_start_date` and `resource_name`."""
    if "/" in key:
        key = "_".join(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", part) for part in key.split("/")).lower()
    return key.replace(".", "_")


def _form(row: Mapping[str, Any], path: Path) -> BillFormat:
    if "line_item_usage_start_date" in row:
        return BillFormat.CUR
    if "ChargePeriodStart" in row and "EffectiveCost" in row:
        return BillFormat.FOCUS
    if "usage_start_time" in row and "cost" in row:
        return BillFormat.GOOGLE
    raise BillError(
        f"{path}: is not a supported bill: expected the columns of AWS CUR 2.0, FOCUS 1.x or Google's detailed export"
    )


def _cur(row: Mapping[str, Any]) -> BillLine | None:
    kind = str(row["line_item_line_item_type"])
    if kind in _PAID_AHEAD or row.get("split_line_item_parent_resource_id"):
        return None  # contained in another line: the covered usage, or the container's instance
    cost = {
        "DiscountedUsage": "reservation_effective_cost",
        "SavingsPlanCoveredUsage": "savings_plan_savings_plan_effective_cost",
    }.get(kind, "line_item_unblended_cost")
    _same_currency(row["line_item_currency_code"])
    usage, resource = str(row.get("line_item_usage_type") or ""), _last_part(row.get("line_item_resource_id"))
    fee = kind == "Fee" and resource.startswith("cr-")
    ec2 = row.get("line_item_product_code") == "AmazonEC2"
    used = "Usage" in kind
    mine = (ec2 and _INSTANCE_USAGE.search(usage) is not None and (used or kind in _REDUCTIONS)) or fee
    unused = kind == "SavingsPlanRecurringFee"
    sku, counts_hours = ("", False) if mine or not used else bill_skus.of_aws(usage)
    return BillLine(
        resource=resource if mine else "",
        start=_moment(row["line_item_usage_start_date"]),
        end=_moment(row["line_item_usage_end_date"]),
        usd=_not_used(row) if unused else _not_reserved(row) if kind == "RIFee" else _decimal(row[cost]),
        hours=_decimal(row["line_item_usage_amount"]) if (mine and used) or counts_hours else None,
        sku=bill_skus.machine_of_aws(usage) if mine else sku,
        unused=unused,
        fee=fee,
    )


def _not_used(row: Mapping[str, Any]) -> Decimal:
    """The unused part of an hour's commitment. The covered lines contain the used part."""
    paid, used = "savings_plan_total_commitment_to_date", "savings_plan_used_commitment"
    return money.EXACT.subtract(_decimal(row[paid]), _decimal(row[used]))


def _not_reserved(row: Mapping[str, Any]) -> Decimal:
    """The unused part of a reserved instance. The discounted lines contain the used part."""
    names = ("reservation_unused_amortized_upfront_fee_for_billing_period", "reservation_unused_recurring_fee")
    return money.total(_decimal(row[name]) for name in names)


def _focus(row: Mapping[str, Any]) -> BillLine | None:
    row = {name: None if value in _NULLS else value for name, value in row.items()}
    _same_currency(row["BillingCurrency"])
    category = str(row.get("ChargeCategory"))
    compute = row.get("ServiceCategory") == "Compute" and category in ("Usage", "Credit")
    unused = row.get("CommitmentDiscountStatus") == "Unused"
    hours = row.get("ConsumedQuantity") if _HOURS.fullmatch(str(row.get("ConsumedUnit") or "")) else None
    sku, counts_hours = _sku_of_focus(row)
    if shared := counts_hours is not None:
        hours = hours if counts_hours else None
    elif category == "Usage":
        sku = bill_skus.machine_of_aws(str(row.get("x_UsageType") or ""))
    return BillLine(
        resource=_focus_resource(row) if compute and not shared and not unused else "",
        start=_moment(row["ChargePeriodStart"]),
        end=_moment(row["ChargePeriodEnd"]),
        usd=_decimal(row["EffectiveCost"]),
        hours=_decimal(hours) if hours is not None and not unused else None,
        sku=sku,
        unused=unused,
    )


_NULLS: Final = ("", "NULL", "null")
"""The forms of null in CSV files, which FOCUS does not define."""
_HOURS: Final = re.compile(r"h(ou)?rs?", re.IGNORECASE)


def _sku_of_focus(row: Mapping[str, Any]) -> tuple[str, bool | None]:
    """The sku of a shared resource, and whether its amount is in hours; None: the row is not a shared resource."""
    if (
        row.get("x_ChargeKind") == ChargeKind.SHARED
    ):  # an export of gpufleet: its hours are those of each pool's share
        return str(json.loads(row["SkuPriceDetails"])["x_Sku"]), False
    sku, counts_hours = bill_skus.of_aws(str(row.get("x_UsageType") or ""))
    if sku:
        return sku, counts_hours
    if str(row.get("ProviderName") or "").startswith("Google"):
        sku = bill_skus.of_google(str(row.get("ChargeDescription") or ""))
    return sku, False if sku else None


def _focus_resource(row: Mapping[str, Any]) -> str:
    """The resource's id, or its name if the id is a number: the ledger identifies instances by their names."""
    if row.get("CapacityReservationStatus") == "Unused":
        return _last_part(row["CapacityReservationId"])
    identity, name = _last_part(row.get("ResourceId")), _last_part(row.get("ResourceName"))
    return name if identity.isdecimal() and name else identity


def _google(row: Mapping[str, Any]) -> BillLine | None:
    _same_currency(row["currency"])
    nested = cast(Mapping[str, Any], row.get("resource") or {})
    service = cast(Mapping[str, Any], row.get("service") or {})
    names = [
        str(row.get(f"resource_{key}") or nested.get(key) or "").removesuffix("/") for key in ("global_name", "name")
    ]
    # the ledger identifies instances by their names; in some rows, one of the two is a number
    name = next((one for one in names if one and not _last_part(one).isdecimal()), names[0] or names[1])
    compute = (row.get("service_description") or service.get("description")) == "Compute Engine"
    sku_fields = cast(Mapping[str, Any], row.get("sku") or {})
    described = str(row.get("sku_description") or sku_fields.get("description") or "")
    unused, sku = described.startswith("Commitment"), bill_skus.of_google(described)
    mine = compute and "/disks/" not in str(name) and not sku and not unused
    return BillLine(
        resource=_last_part(name) if mine else "",
        start=_moment(row["usage_start_time"]),
        end=_moment(row["usage_end_time"]),
        usd=money.EXACT.add(_decimal(row["cost"]), _credits(row.get("credits"))),
        hours=None,  # amounts are core seconds, byte seconds and GPU seconds
        sku=bill_skus.machine_of_google(_list(row.get("system_labels"))) if mine else sku,
        unused=unused,
    )


_READERS: Final = {BillFormat.CUR: _cur, BillFormat.FOCUS: _focus, BillFormat.GOOGLE: _google}


def _credits(value: Any) -> Decimal:
    return money.total(_decimal(one["amount"]) for one in _list(value))


def _list(value: Any) -> list[Mapping[str, Any]]:
    """A repeated field: JSON text in CSV, a list in Parquet."""
    if isinstance(value, str):
        return json.loads(value, parse_float=Decimal) if value.strip() else []
    return value or []


def _same_currency(value: Any) -> None:
    if value != CURRENCY:
        raise ValueError(f"expected the currency {CURRENCY}, got {value!r}; export the bill in {CURRENCY}")


def _decimal(value: Any) -> Decimal:
    if value is None or value == "":
        raise ValueError("an amount is empty")
    text = str(value).strip()
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"expected an amount, got {text[:40]!r}")
    amount = Decimal(text)
    if abs(amount) >= _TOO_MUCH:
        raise ValueError(f"expected an amount below {_TOO_MUCH}, got {text[:40]}")
    return amount


_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?", re.ASCII)
"""Stricter than Decimal(): no underscores, no digits of other scripts, no NaN or infinity."""
_TOO_MUCH: Final = Decimal(10**15)


def _moment(value: Any) -> datetime:
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    moment = datetime.fromisoformat(str(value).removesuffix(" UTC"))
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _last_part(value: Any) -> str:
    """The id at the end of an ARN or a resource's full name."""
    return str(value or "").rsplit("/", 1)[-1]


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"column {error} is missing"
    if isinstance(error, AttributeError | RecursionError):
        return "a column contains a value of another type than its format defines"
    return "an amount or a time is out of range" if isinstance(error, ArithmeticError) else str(error)
