"""The rule table of FOCUS 1.2, checked on rows of a CSV.

The table (tests/recorded/billing/focus_1_2_rules.jsonl) is the requirements model that the FinOps Foundation's own
validator runs, without the rules that it cannot check. Rules are a tree: a rule holds for the rows that meet its
condition and the conditions of all rules above it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final

TABLE: Final = Path(__file__).parents[1] / "recorded" / "billing" / "focus_1_2_rules.jsonl"
ROOT: Final = "CostAndUsage-D-000-M"

_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_NUMBER: Final = re.compile(r"-?\d+(\.\d+)?(E-?\d+)?")
_UNIT: Final = re.compile(r"[A-Za-z/]+(-(Hours|Days|Months))?")

Row = Mapping[str, str]
Rule = Mapping[str, Any]


def _null(column: str) -> dict[str, Any]:
    return {"CheckFunction": "CheckValue", "ColumnName": column, "Value": None}


def _not_null(column: str) -> dict[str, Any]:
    return {"CheckFunction": "CheckNotValue", "ColumnName": column, "Value": None}


def _is(column: str, value: str) -> dict[str, Any]:
    return {"CheckFunction": "CheckValue", "ColumnName": column, "Value": value}


MISPRINTS: Final[dict[str, dict[str, Any]]] = {
    "CommitmentDiscountStatus-C-003-C": {"requirement": _null("CommitmentDiscountStatus")},
    "CommitmentDiscountStatus-C-004-C": {
        "condition": {
            "CheckFunction": "AND",
            "Items": [_not_null("CommitmentDiscountId"), _is("ChargeCategory", "Usage")],
        }
    },
    "CommitmentDiscountStatus-C-005-M": {
        "requirement": {
            "CheckFunction": "OR",
            "Items": [_is("CommitmentDiscountStatus", value) for value in ("Used", "Unused")],
        }
    },
    # nothing in a row says whether an invoice exists; ours never have one
    "InvoiceId-C-005-C": {"condition": _not_null("InvoiceId")},
}
"""Rules whose check in the table contradicts the specification; here they are as the specification says."""


def read() -> dict[str, Rule]:
    """The rules by their ids."""
    with TABLE.open(encoding="utf-8") as lines:
        found = {rule.pop("id"): rule for rule in map(json.loads, lines)}
    return {name: rule | MISPRINTS.get(name, {}) for name, rule in found.items()}


class Checker:
    """Checks rows. Only rules that say MUST or SHOULD are broken by a row; others permit."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rules = read()
        self._rows = rows
        self.used: set[str] = set()
        """Rules whose own check ran."""

    def broken(self) -> dict[str, list[int]]:
        """Rule to the rows that break it."""
        found: dict[str, list[int]] = {}
        for number, row in enumerate(self._rows):
            for rule in sorted(self._of(ROOT, row)):
                found.setdefault(rule, []).append(number)
        return found

    def _of(self, name: str, row: Row) -> set[str]:
        """The rules that a row breaks, of a rule and those below it."""
        rule = self._rules.get(name)
        if rule is None or rule["keyword"].startswith(("MAY", "OPTIONAL")):
            return set()
        if not self._meets(rule["condition"], row):
            return set()
        return self._check(name, rule["requirement"], row)

    def _check(self, name: str, check: Mapping[str, Any], row: Row) -> set[str]:
        match check["CheckFunction"]:
            case "AND":
                return set[str]().union(*(self._check(name, one, row) for one in check["Items"]))
            case "OR":
                columns = {one.get("ColumnName", "") for one in check["Items"]}
                if all(not row.get(column) for column in columns) and columns != {""}:
                    return set()  # a list of allowed values; whether it may be null is another rule
                found = [self._check(name, one, row) for one in check["Items"]]
                return set() if not all(found) else {name}
            case "CheckModelRule":
                return self._of(check["ModelRuleId"], row)
            case _:
                self.used.add(name)
                return set() if self._meets(check, row) else {name}

    def _meets(self, check: Mapping[str, Any], row: Row) -> bool:
        if not check:
            return True
        if "AND" in check:  # two conditions of the table are written so
            several = check["AND"]
            return all(self._meets(one, row) for one in ([several] if isinstance(several, dict) else several))
        match check["CheckFunction"]:
            case "AND":
                return all(self._meets(one, row) for one in check["Items"])
            case "OR":
                return any(self._meets(one, row) for one in check["Items"])
            case "CheckDistinctCount":
                return self._distinct(check, row)
            case _:
                return _value(check, row)

    def _distinct(self, check: Mapping[str, Any], row: Row) -> bool:
        """Rows with this value of A have so many values of B."""
        a, b = check["ColumnAName"], check["ColumnBName"]
        if not row[a]:
            return True
        return len({other[b] for other in self._rows if other[a] == row[a]}) == check["ExpectedCount"]


def _value(check: Mapping[str, Any], row: Row) -> bool:
    """A check of one row alone."""
    function, value = check["CheckFunction"], row.get(check.get("ColumnName", ""), "")
    match function:
        case "ColumnPresent":
            return check["ColumnName"] in row
        case "CheckValue":
            return _same(value, check["Value"])
        case "CheckNotValue":
            return not _same(value, check["Value"])
        case "CheckSameValue":
            return row[check["ColumnAName"]] == row[check["ColumnBName"]]
        case "CheckNotSameValue":
            return row[check["ColumnAName"]] != row[check["ColumnBName"]]
        case "ColumnByColumnEqualsColumnValue":
            return _product(*(row[check[name]] for name in ("ColumnAName", "ColumnBName", "ResultColumnName")))
        case _:
            return not value or _form(function, value, check)


def _same(value: str, wanted: Any) -> bool:
    if wanted is None:
        return not value
    number = _decimal(value)
    return value == str(wanted) or (number is not None and number == _decimal(str(wanted)))


def _product(a: str, b: str, result: str) -> bool:
    """As a decimal and as a 64-bit float, since validators do either."""
    if not (a and b):
        return True
    return Decimal(a) * Decimal(b) == Decimal(result) and float(a) * float(b) == float(result)


def _form(function: str, value: str, check: Mapping[str, Any]) -> bool:
    match function:
        case "TypeDateTime" | "FormatDateTime":
            return _TIME.fullmatch(value) is not None
        case "TypeDecimal":
            return _decimal(value) is not None and "." in value
        case "FormatNumeric" | "CheckDecimalValue":
            return _NUMBER.fullmatch(value) is not None
        case "CheckGreaterOrEqualThanValue":
            return Decimal(value) >= Decimal(str(check["Value"]))
        case "TypeString" | "FormatString":
            return value.strip() == value
        case "FormatUnit":
            return _UNIT.fullmatch(value) is not None
        case "FormatCurrency" | "CheckNationalCurrency":
            return re.fullmatch("[A-Z]{3}", value) is not None
        case "FormatKeyValue":
            return _is_key_value(value)
        case _:
            raise ValueError(f"{function}: not a check of the table")


def _is_key_value(text: str) -> bool:
    found = json.loads(text)
    return isinstance(found, dict) and not any(isinstance(value, dict | list) for value in found.values())


def _decimal(text: str) -> Decimal | None:
    try:
        return Decimal(text)
    except InvalidOperation:
        return None
