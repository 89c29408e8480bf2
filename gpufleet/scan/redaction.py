"""Replaces names of accounts in texts that are shown to people without access. Pure."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from gpufleet.scan.model import Scan

Hide = Callable[[str], str]
_ACCOUNT_ID: Final = re.compile(r"\d{12}")
_SEPARATOR: Final = "[-_ ]?"
"""People also write an account id as 1111-2222-3333."""
_RESOURCE: Final = r"(?<![\w-])(?:(?:i|cr)-[0-9a-f]{17}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?!\w)"
"""Ids of AWS and UUIDs, which may contain 12 digits by chance."""
_OTHERS: Final = (
    # Google's number of a project, in its messages
    r"""(?P<before>\bproject\w*["' :=/]+)\d{6,}""",
    # a role in an ARN
    r"(?<=role/)[\w+=,.@/-]+",
    # an account id, but not the digits of an amount
    rf"(?<!\d)(?<!\d\.)\d{{4}}{_SEPARATOR}\d{{4}}{_SEPARATOR}\d{{4}}(?!\d|\.\d)",
    # an ellipsis marks cut text, which may begin with a part of an account id
    r"(?<![\w.])\d{3,11}(?=…)",
)
"""What is hidden, whoever it belongs to."""


def redactor(scan: Scan, names: Iterable[str] = ()) -> Hide:
    """Return a function that replaces account ids and project names in a text. The same one gets the same name.

    `names`: more names, as of profiles and roles. Other account ids, roles in ARNs and numbers of Google projects are
    replaced, too. Apply it to whole texts: the part of a name that a cut leaves is not recognized.
    """
    accounts = dict.fromkeys(result.scope.account for result in scan.results)
    known = accounts | dict.fromkeys(one.scope.account for one in scan.all_failures)
    known |= dict.fromkeys(name for name in names if name)
    hidden = {name: f"account-{number}" for number, name in enumerate(known, 1)}
    return _hide(hidden, accounts)


def anonymous(names: Iterable[str], projects: Collection[str] = ()) -> Hide:
    """Like `redactor`, before the accounts are known: each one is called "account"."""
    return _hide(dict.fromkeys([*names, *projects], "account"), projects)


def _hide(hidden: Mapping[str, str], accounts: Collection[str]) -> Hide:
    """`accounts`: names that are also hidden as a part of another name, as in `ml_research-7-team`."""
    names = [_pattern(name, is_account=name in accounts) for name in sorted(hidden, key=len, reverse=True)]
    pattern = re.compile("|".join([*names, f"(?P<resource>{_RESOURCE})", *_OTHERS]))

    def replaced(match: re.Match[str]) -> str:
        if match["resource"]:
            return match[0]
        before = match["before"] or ""
        name = match[0].removeprefix(before)
        return before + (hidden.get(name) or hidden.get(re.sub(_SEPARATOR, "", name)) or "account")

    return lambda text: pattern.sub(replaced, text)


def _pattern(name: str, *, is_account: bool) -> str:
    if _ACCOUNT_ID.fullmatch(name):
        groups = [name[start : start + 4] for start in range(0, 12, 4)]
        return rf"(?<!\d){_SEPARATOR.join(groups)}(?!\d)"
    if is_account:
        return rf"(?<![^\W_]){re.escape(name)}(?![^\W_])"
    return rf"(?<![\w-]){re.escape(name)}(?![\w-])"
