"""Resources that an environment needs before its first `pulumi up`. Shared by both clouds."""

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
    """One secret that an environment needs."""

    name: str
    what: str
    make: Callable[[], str]
    """Generates a new value."""


def secrets_of(engine_key: str, order_key: str) -> tuple[Secret, ...]:
    """The two secrets of an environment, with the given names."""
    return (
        Secret(
            name=engine_key,
            what=f"secret {engine_key} that clients of the engines send",
            make=lambda: secrets.token_hex(_ENGINE_KEY_BYTES),
        ),
        Secret(name=order_key, what=f"secret {order_key} that signs orders to node agents", make=new_pem),
    )


def public_half(name: str, pem: str) -> PublicKey:
    """The public key that belongs to a private key in PEM. Raises CloudError, which contains the secret's name."""
    try:
        return OrderKey(pem).public
    except KeyFormError as error:
        raise CloudError(f"{name}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapStep:
    """One required resource. `make` is called only if the resource is missing."""

    what: str
    present: bool
    make: Callable[[], None]
