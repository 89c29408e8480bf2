"""Which slices and shared devices of GPU instances work, with their price: types, table and JSON. Pure.

`app.unmanaged_slices` has the rule. An instance is in use while one of its slices works, so its own state does not
show which of them are idle.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final

from gpufleet.costs import slice_view

HEADINGS: Final = ("slice", "user", "use", "share", "USD/h")
RECLAIM: Final = (
    "do not stop an instance for an idle slice while its other slices work or are unknown: to reclaim the slice, give"
    " it to other work, or divide the accelerator in another way"
)


class Use(StrEnum):
    """What is known about the use of a slice in the window. The values are stable codes."""

    IDLE = "idle"
    """Certain: evidence of rest covers the window, and nothing worked."""
    STRANDED = "stranded"
    """Compute of a device that no slice holds."""
    UNKNOWN = "unknown"
    IN_USE = "in use"
    """It worked at least once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceUse:
    """A slice, a shared device, or a part of an instance without a slice."""

    instance_id: str
    device: str = ""
    slice: str = ""
    profile: str = ""
    share: str | None = None
    """Of the device, as `3/7`; without a device, of the instance. None: unknown."""
    use: Use
    users: Mapping[str, Use]
    """By name (tenants, or engines of unnamed tenants): their own use. One user has the use of the slice."""
    note: str = ""
    """Why a part has no user."""
    usd_per_hour: Decimal | None
    """Its share of the instance's price. None: unknown."""


def in_order(found: Iterable[SliceUse]) -> list[SliceUse]:
    """The idle ones first, each use by price."""
    uses = list(Use)
    return sorted(
        found,
        key=lambda one: (
            uses.index(one.use),
            -(one.usd_per_hour or 0),
            *(one.instance_id, one.device, one.slice, one.profile, one.note),
        ),
    )


def rows(found: Sequence[SliceUse]) -> list[tuple[str, ...]]:
    """The cells under HEADINGS."""
    return [
        (
            slice_view.place(one.instance_id, one.device, one.slice, one.profile),
            _user(one),
            one.use.value,
            one.share or "?",
            slice_view.rate(one.usd_per_hour),
        )
        for one in found
    ]


def _user(one: SliceUse) -> str:
    if len(one.users) > 1:
        return ", ".join(f"{name}: {use.value}" for name, use in one.users.items())
    return next(iter(one.users), "") or one.note or slice_view.NO_USER


def notes(found: Sequence[SliceUse]) -> list[str]:
    """The sums below the table, and how to reclaim what is idle."""
    if not found:
        return []
    counts = Counter(one.use for one in found)
    parts = [f"{counts[use]} {use.value}{_sum(found, use)}" for use in Use if counts[use]]
    wasted = counts[Use.IDLE] or counts[Use.STRANDED]
    return [f"by slice: {', '.join(parts)}", *([RECLAIM] if wasted else [])]


def _sum(found: Sequence[SliceUse], use: Use) -> str:
    if use not in (Use.IDLE, Use.STRANDED):
        return ""
    prices = [one.usd_per_hour for one in found if one.use is use]
    known = [usd for usd in prices if usd is not None]
    least = "" if len(known) == len(prices) else "at least "
    return f" ({least}{slice_view.rate(sum(known, Decimal(0)))} USD/h)"


def document(found: Sequence[SliceUse]) -> list[dict[str, Any]]:
    """As JSON. `null`: unknown, or there is none."""
    return [
        {
            "instance": one.instance_id,
            "device": one.device or None,
            "slice": one.slice or None,
            "profile": one.profile or None,
            "share_of_device": one.share,
            "use": one.use.value,
            "users": [{"name": name, "use": use.value} for name, use in one.users.items()],
            "usd_per_hour": None if one.usd_per_hour is None else format(one.usd_per_hour, "f"),
        }
        for one in found
    ]
