"""What an environment needs before its first `pulumi up`, in words that both clouds share."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gpufleet.clouds.order_key import OrderKey, new_pem
from gpufleet.domain.activity import CloudError
from gpufleet.domain.rsa import KeyFormError, PublicKey

_ENGINE_KEY_BYTES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """One secret of an environment."""

    name: str
    what: str
    make: Callable[[], str]
    """A new value."""


def secrets_of(engine_key: str, order_key: str) -> tuple[Secret, ...]:
    """The secrets of an environment, by their names."""
    return (
        Secret(
            name=engine_key,
            what=f"secret {engine_key} that engines ask of their clients",
            make=lambda: secrets.token_hex(_ENGINE_KEY_BYTES),
        ),
        Secret(name=order_key, what=f"secret {order_key} that signs orders to node agents", make=new_pem),
    )


def public_half(name: str, pem: str) -> PublicKey:
    """The public key of a secret's value. Raises CloudError that names the secret."""
    try:
        return OrderKey(pem).public
    except KeyFormError as error:
        raise CloudError(f"{name}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapStep:
    """One thing that must be there. `make` is called only where it is missing."""

    what: str
    present: bool
    make: Callable[[], None]
