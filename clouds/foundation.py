"""What an environment needs before its first `pulumi up`, in words that both clouds share."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from clouds.order_key import OrderKey, new_pem
from gpufleet.domain.activity import CloudError
from gpufleet.domain.rsa import KeyFormError, PublicKey

_ENGINE_KEY_BYTES: Final = 32


def new_engine_key() -> str:
    """What engines will ask of their clients: 256 bits in hex."""
    return secrets.token_hex(_ENGINE_KEY_BYTES)


def new_order_key() -> str:
    """The private key that will sign orders to node agents, as PEM."""
    return new_pem()


def public_half(name: str, pem: str) -> PublicKey:
    """The public key of a secret's value. Raises CloudError that names the secret."""
    try:
        return OrderKey(pem).public
    except KeyFormError as error:
        raise CloudError(f"{name}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing that must be there. `make` is called only where it is missing."""

    what: str
    present: bool
    make: Callable[[], None]
