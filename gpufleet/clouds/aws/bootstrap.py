"""Resources that an environment needs before its first `pulumi up`: state bucket, KMS key, secrets. Created once."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gpufleet.clouds.aws.calls import AwsCalls
from gpufleet.clouds.aws.state_bucket import StateBucket
from gpufleet.clouds.foundation import BootstrapStep, public_half, secrets_of
from gpufleet.domain.activity import CloudError
from gpufleet.domain.rsa import PublicKey

ABSENT: Final = frozenset({"NotFoundException", "ParameterNotFound"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Foundation:
    """Names of the resources, and the Pulumi settings that refer to them."""

    account: str
    bucket: str
    key_alias: str
    engine_key: str
    order_key: str
    region: str

    @property
    def backend_url(self) -> str:
        return f"s3://{self.bucket}?region={self.region}&awssdk=v2"

    @property
    def secrets_provider(self) -> str:
        return f"awskms://{self.key_alias}?region={self.region}"


def foundation(account: str, region: str, environment: str, order_key: str | None = None) -> Foundation:
    """The names for one environment. All environments of an account and region share the state bucket.

    `order_key`: the name of the secret that signs orders; None: the default name.
    """
    return Foundation(
        account=account,
        bucket=f"gpu-fleet-state-{account}-{region}",
        key_alias=f"alias/gpu-fleet-{environment}",
        engine_key=f"/gpu-fleet/{environment}/engine-key",
        order_key=order_key or f"/gpu-fleet/{environment}/order-key",
        region=region,
    )


def account_of(calls: AwsCalls) -> str:
    """The AWS account of the current credentials. Raises CloudError."""
    return str(calls.one("sts", "get_caller_identity")["Account"])


def steps(calls: AwsCalls, wanted: Foundation) -> Iterator[BootstrapStep]:
    """Existing and missing resources, in the order of their creation. Raises CloudError."""
    bucket = StateBucket(calls, wanted.bucket, wanted.region, wanted.account)
    exists = bucket.exists()
    lacks = bucket.lacks() if exists else []
    yield BootstrapStep(
        what=f"state bucket {wanted.bucket} (versioned, encrypted, no public access, TLS only)"
        + (f": it exists and lacks {', '.join(lacks)}" if lacks else ""),
        present=exists and not lacks,
        make=bucket.make,
    )
    yield BootstrapStep(
        what=f"key {wanted.key_alias} for secrets in Pulumi's state (rotated yearly)",
        present=_there(calls, "kms", "describe_key", KeyId=wanted.key_alias),
        make=lambda: _make_key(calls, wanted),
    )
    for secret in secrets_of(wanted.engine_key, wanted.order_key):
        yield BootstrapStep(
            what=secret.what,
            present=_is_secret(calls, secret.name),
            make=lambda secret=secret: _make_secret(calls, secret.name, secret.make()),
        )


def public_key(calls: AwsCalls, wanted: Foundation) -> PublicKey | None:
    """The public half of the key that signs orders; None if the key does not exist yet. Raises CloudError."""
    try:
        found = calls.one("ssm", "get_parameter", Name=wanted.order_key, WithDecryption=True)
    except CloudError as error:
        if error.code in ABSENT:
            return None
        raise
    return public_half(wanted.order_key, str(found["Parameter"]["Value"]))


def _there(calls: AwsCalls, service: str, operation: str, **arguments: str) -> bool:
    try:
        calls.one(service, operation, **arguments)
    except CloudError as error:
        # other errors (403, a timeout) do not prove absence; the resource must not be created a second time
        if error.code in ABSENT:
            return False
        raise
    return True


def _is_secret(calls: AwsCalls, name: str) -> bool:
    """Whether this parameter exists. Raises CloudError, also if the parameter is stored unencrypted."""
    try:
        found = calls.one("ssm", "get_parameter", Name=name)["Parameter"]
    except CloudError as error:
        if error.code in ABSENT:
            return False
        raise
    if found["Type"] != "SecureString":
        raise CloudError(
            f"{name}: its type is {found['Type']}, so its value is not encrypted: delete the"
            " parameter, store a new value with the type SecureString, and treat the old value as leaked"
        )
    return True


def _make_key(calls: AwsCalls, wanted: Foundation) -> None:
    made = calls.one("kms", "create_key", Description="gpu-fleet: secrets in Pulumi's state")
    key = made["KeyMetadata"]["KeyId"]
    calls.one("kms", "enable_key_rotation", KeyId=key)
    calls.one("kms", "create_alias", AliasName=wanted.key_alias, TargetKeyId=key)


def _make_secret(calls: AwsCalls, name: str, value: str) -> None:
    # no Overwrite: two concurrent bootstrap runs must not give two readers different values
    calls.one("ssm", "put_parameter", Name=name, Value=value, Type="SecureString", Overwrite=False)
