"""A call of the Compute Engine API, and helpers of its handlers: scopes, pages, patches."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from localcloud.documents import is_document
from localcloud.gcp.errors import ApiError, invalid
from localcloud.gcp.filters import matches
from localcloud.gcp.store import Row

if TYPE_CHECKING:
    from localcloud.gcp.state import GoogleState

_PAGE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request that is valid by the discovery document."""

    method_id: str
    path: str
    """Without the API's prefix: `projects/P/zones/Z/instances/NAME/stop`."""
    parameters: Mapping[str, str]
    query: Mapping[str, str]
    body: Row

    @property
    def scope(self) -> str:
        """`global`, `zones/Z` or `regions/R`."""
        parts = self.path.split("/")
        return "global" if parts[2] == "global" else "/".join(parts[2:4])

    @property
    def collection(self) -> str:
        """As the path names it; the collections of regions and zones share their names."""
        parts = self.path.split("/")
        return parts[3] if parts[2] == "global" else parts[4] if len(parts) > 4 else parts[2]

    @property
    def verb(self) -> str:
        return self.method_id.rpartition(".")[2]


Handler = Callable[["GoogleState", Call], Row]


def page(call: Call, rows: Sequence[Row], kind: str, items: str = "items") -> Row:
    """One page of a list, filtered, with the requested length. Raises ApiError."""
    found = _ordered(call, [row for row in rows if matches(call.query.get("filter"), row)])
    start, most = _place(call)
    answer: Row = {}
    if kind:
        answer = {"kind": f"compute#{kind}", "id": call.path}
    chosen = found[start : start + most]
    if chosen:
        answer[items] = chosen
    if start + most < len(found):
        answer["nextPageToken"] = str(start + most)
    return answer


def _ordered(call: Call, rows: list[Row]) -> list[Row]:
    """Sorted by name or, without a filter, by descending creation time if requested."""
    order = call.query.get("orderBy", "name")
    if order == "name":
        return rows
    if order != "creationTimestamp desc":
        raise invalid("orderBy", order, "Must be name or creationTimestamp desc.")
    if call.query.get("filter"):
        raise invalid("orderBy", order, "It cannot be combined with a filter.")
    return sorted(rows, key=lambda row: str(row.get("insertTime") or row.get("creationTimestamp")), reverse=True)


def _place(call: Call) -> tuple[int, int]:
    text, token = call.query.get("maxResults", str(_PAGE)), call.query.get("pageToken", "0") or "0"
    if not text.isdigit() or int(text) > _PAGE:
        raise invalid("maxResults", text, f"Must be a whole number from 0 to {_PAGE}.")
    if not token.isdigit():
        raise ApiError(400, "invalid", f"Invalid value for field 'pageToken': '{token}'.")
    return int(token), int(text) or _PAGE


def aggregated(call: Call, rows: Mapping[str, Sequence[Row]], kind: str, items: str) -> Row:
    """One page of a list over all scopes: pages are counted over the resources, empty scopes carry a warning."""
    flat = [(scope, row) for scope, found in rows.items() for row in found if matches(call.query.get("filter"), row)]
    start, most = _place(call)
    answer: Row = {"kind": f"compute#{kind}", "id": call.path, "items": {}}
    for scope in rows:
        chosen = [row for where, row in flat[start : start + most] if where == scope]
        answer["items"][scope] = {items: chosen} if chosen else _nothing(scope)
    if start + most < len(flat):
        answer["nextPageToken"] = str(start + most)
    return answer


def _nothing(scope: str) -> Row:
    message = f"There are no results for scope '{scope}' on this page."
    return {
        "warning": {
            "code": "NO_RESULTS_ON_PAGE",
            "message": message,
            "data": [{"key": "scope", "value": scope}],
        }
    }


def patched(row: Mapping[str, Any], change: Mapping[str, Any]) -> Row:
    """A resource with a patch applied: maps are merged, lists and plain values replaced, null removes a field."""
    found = dict(row)
    for name, value in change.items():
        old = found.get(name)
        if value is None:
            found.pop(name, None)
        elif is_document(value):
            found[name] = patched(old if is_document(old) else {}, value)
        else:
            found[name] = value
    return found
