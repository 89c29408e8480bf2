"""Detects probable secrets in text that many users can read: user data, settings, arguments."""

import re
from typing import Final

SECRETS: Final = {
    "an AWS access key": re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    "a Hugging Face token": re.compile(r"\bhf_[A-Za-z0-9]{30,}"),
    "an OpenAI-style key": re.compile(r"\bsk-[A-Za-z0-9_-]{20,}"),
    "a Slack token": re.compile(r"\bxox[abeprs]-[A-Za-z0-9-]{10,}|\bxapp-[A-Za-z0-9-]{10,}"),
    "a Slack webhook": re.compile(r"hooks\.slack(?:-gov)?\.com/(?:services|triggers|workflows)/\w+/\w+/\w+"),
    "a GitHub token": re.compile(r"\bgh[pousr]_[A-Za-z0-9]{30,}|\bgithub_pat_[A-Za-z0-9_]{30,}"),
    "a Google API key": re.compile(r"\bAIza[0-9A-Za-z_-]{35}\b"),
    "a private key": re.compile(r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----(?:.*?-----END [A-Z ]*PRIVATE KEY-----|.*)"),
    "a JSON web token": re.compile(r"\beyJ[A-Za-z0-9_-]{8,500}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"),
    "a password": re.compile(
        r"""(?i)(?<!gcp-)(?:\b|_)(?:password|passwd|secret|token|(?:api|access|private|secret)_?key)"""
        r"""["']?\s*[:=]\s*["']?(?!ssm:|gcp-secret:|arn:|\$|<|\{)[^\s"',;]{8,}"""
    ),
    "a password in a URL": re.compile(r"[a-z][a-z0-9+.-]{0,30}://[^\s/:@]+:[^\s/@$]{3,}@"),
}
"""Kind -> pattern of a secret. References (`ssm:…`, `gcp-secret:…`, `arn:…`, `$VARIABLE`) do not match.

A part that can start at each letter of a word has a maximum length; otherwise a word of a million letters would
take hours."""

_CREDENTIALS: Final = {
    "a password in a URL": re.compile(
        r"""(?i)\b[a-z][a-z0-9+.-]{0,30}://[^\s/:@]*:(?!\d{1,5}[/?#])[^\s"'<>]{1,1000}@"""
    ),
    "a password": re.compile(
        r"""(?i)(?<!gcp-)\b\w{0,40}?(?:password|passwd|secret|token|(?:api|access|private|secret|signing)[_-]?key)"""
        r"""\\?["']?\s*[:=>]\s*\\?["']?(?!ssm:|gcp-secret:|arn:|\$|<|\{|\[|\()[^\s"',;<\\]{8,}"""
    ),
    "an Authorization header": re.compile(
        r"(?i)\b(?:bearer|basic)\s+(?:[a-z0-9._~+/=-]{16,}|(?=[a-z._~+/=-]*\d)[a-z0-9._~+/=-]{8,})"
    ),
    "a Google access token": re.compile(r"\bya29\.[A-Za-z0-9_.-]{10,}"),
    "a signature": re.compile(r"(?i)\bX-(?:Amz|Goog)-Signature=[0-9a-f]{16,}"),
    "an AWS secret key": re.compile(
        r"(?<![A-Za-z0-9/+=])(?=[^A-Z]{0,39}[A-Z])(?=[^a-z]{0,39}[a-z])(?=\D{0,39}\d)[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=])"
    ),
}
"""Kind -> pattern of a possible secret, for logs only: a log that hides too much loses little. Settings with a match
are not refused."""

_NAME: Final = re.compile(
    r"(?i)(?:.*[_-])?(?:token|secret|password|passwd|credentials?|(?:api|access|private)_?key|key)"
)


def find_secrets(text: str) -> list[str]:
    """Return the kinds of secrets that a text seems to contain; never their values."""
    return [kind for kind, pattern in SECRETS.items() if pattern.search(text)]


def redacted(text: str) -> str:
    """Replace each probable secret in the text with `[KIND OF SECRET]`."""
    for kind, pattern in (*_CREDENTIALS.items(), *SECRETS.items()):
        text = pattern.sub(f"[{kind}]", text)
    return text


def names_secret(name: str) -> bool:
    """Return whether a variable with this name (such as `HF_TOKEN`, `API_KEY`) is meant for a secret."""
    return _NAME.fullmatch(name) is not None
