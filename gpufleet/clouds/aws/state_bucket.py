"""The S3 bucket for Pulumi state: required settings, checks, and creation."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpufleet.clouds.aws.calls import AwsCalls
from gpufleet.domain.activity import CloudError

ABSENT: Final = frozenset({"404", "NoSuchBucket"})
NOT_SET: Final = frozenset(
    {"NoSuchPublicAccessBlockConfiguration", "ServerSideEncryptionConfigurationNotFoundError", "NoSuchBucketPolicy"}
)
FORBIDDEN: Final = frozenset({"403", "AccessDenied"})
TLS_ONLY: Final = "TlsOnly"
_CLOSED: Final = dict.fromkeys(
    ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets"), True
)
_BY_KMS: Final = {
    "Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms"}, "BucketKeyEnabled": True}]
}


class StateBucket:
    """A bucket of one account. All calls check its owner, so that another account's bucket is not read or written."""

    def __init__(self, calls: AwsCalls, name: str, region: str, account: str) -> None:
        self._calls = calls
        self._name = name
        self._region = region
        self._account = account

    def exists(self) -> bool:
        """Whether the account has the bucket. Raises CloudError, also if another account owns the name."""
        try:
            self._of_bucket("head_bucket")
        except CloudError as error:
            if error.code in ABSENT:
                return False
            if error.code in FORBIDDEN:
                raise CloudError(
                    f"bucket {self._name}: is not owned by account {self._account}, or these credentials may not read"
                    f" it; state must be stored in a bucket of this account; use credentials of it ({error})",
                    error.code,
                ) from error
            raise
        return True

    def lacks(self) -> list[str]:
        """Descriptions of the required settings that an existing bucket lacks. Raises CloudError."""
        return [setting.word for setting in _SETTINGS if not setting.is_met(self._read(setting))]

    def make(self) -> None:
        """Create the bucket if it does not exist, and apply missing settings. Raises CloudError.

        An earlier run may have stopped between both steps.
        """
        if not self.exists():
            # S3 does not accept us-east-1 as a location constraint
            place = {"LocationConstraint": self._region}
            where = {} if self._region == "us-east-1" else {"CreateBucketConfiguration": place}
            self._calls.one("s3", "create_bucket", Bucket=self._name, **where)
        for setting in _SETTINGS:
            now = self._read(setting)
            if not setting.is_met(now):
                self._of_bucket(f"put_{setting.of}", **setting.wanted(now, self._name))

    def _read(self, setting: "_Setting") -> Mapping[str, Any]:
        try:
            return self._of_bucket(f"get_{setting.of}")
        except CloudError as error:
            if error.code in NOT_SET:
                return {}
            raise

    def _of_bucket(self, operation: str, **arguments: Any) -> Mapping[str, Any]:
        return self._calls.one("s3", operation, Bucket=self._name, ExpectedBucketOwner=self._account, **arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    word: str
    of: str
    """Name of the setting in the `get_` and `put_` operations of S3."""
    is_met: Callable[[Mapping[str, Any]], bool]
    """Whether the response of S3 meets the requirement. The response is empty if nothing was ever set."""
    wanted: Callable[[Mapping[str, Any], str], Mapping[str, Any]]
    """Arguments to write, from the current setting and the bucket's name."""


def _is_closed(now: Mapping[str, Any]) -> bool:
    block = now.get("PublicAccessBlockConfiguration", {})
    return all(block.get(key) is True for key in _CLOSED)


def _is_by_kms(now: Mapping[str, Any]) -> bool:
    rules = now.get("ServerSideEncryptionConfiguration", {}).get("Rules", [])
    algorithms = [rule.get("ApplyServerSideEncryptionByDefault", {}).get("SSEAlgorithm", "") for rule in rules]
    return any(algorithm.startswith("aws:kms") for algorithm in algorithms)


def _is_tls_only(now: Mapping[str, Any]) -> bool:
    return any(statement.get("Sid") == TLS_ONLY for statement in _policy(now)["Statement"])


def _with_tls_only(now: Mapping[str, Any], bucket: str) -> Mapping[str, Any]:
    """The bucket policy with the TLS-only statement added. Existing statements stay."""
    policy = _policy(now)
    denied = {
        "Sid": TLS_ONLY,
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:*",
        "Resource": [f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/*"],
        "Condition": {"Bool": {"aws:SecureTransport": "false"}},
    }
    return {"Policy": json.dumps(policy | {"Statement": [*policy["Statement"], denied]})}


def _policy(now: Mapping[str, Any]) -> dict[str, Any]:
    policy: dict[str, Any] = json.loads(now.get("Policy", '{"Version": "2012-10-17", "Statement": []}'))
    # S3 accepts a single statement that is not in a list
    return policy if isinstance(policy["Statement"], list) else policy | {"Statement": [policy["Statement"]]}


_SETTINGS: Final = (
    _Setting(
        word="a public access block",
        of="public_access_block",
        is_met=_is_closed,
        wanted=lambda _now, _name: {"PublicAccessBlockConfiguration": _CLOSED},
    ),
    _Setting(
        word="versioning",
        of="bucket_versioning",
        is_met=lambda now: now.get("Status") == "Enabled",
        wanted=lambda _now, _name: {"VersioningConfiguration": {"Status": "Enabled"}},
    ),
    _Setting(
        word="encryption by KMS",
        of="bucket_encryption",
        is_met=_is_by_kms,
        wanted=lambda _now, _name: {"ServerSideEncryptionConfiguration": _BY_KMS},
    ),
    _Setting(word="a policy that requires TLS", of="bucket_policy", is_met=_is_tls_only, wanted=_with_tls_only),
)
