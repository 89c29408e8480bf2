"""The private key that signs orders to node agents: creation, loading and signing."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from gpufleet.clouds import secrets
from gpufleet.domain.activity import CloudError
from gpufleet.domain.orders import Claim
from gpufleet.domain.rsa import EXPONENT, KeyFormError, PublicKey, public_key
from gpufleet.logs import hide

BITS: Final = 3072
"""Size of a new key. It gives 128 bits of security (NIST SP 800-57, part 1, table 2)."""
VARIABLE: Final = "GPUFLEET_ORDER_KEY_FILE"
"""Environment variable with the path of a PEM file that replaces the secret."""


class OrderKey:
    """An RSA private key in PEM that signs orders.

    Raises KeyFormError if the text does not contain such a key. The error contains no part of the text.
    """

    def __init__(self, text: str) -> None:
        hide(text)
        try:
            key = load_pem_private_key(text.encode(), password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            # without the cause, because a parser's message may quote its input
            raise KeyFormError("does not contain a private key in PEM without a password") from None
        if not isinstance(key, RSAPrivateKey):
            raise KeyFormError("contains a private key that is not RSA")
        self._key = key
        pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        self.public: PublicKey = public_key(pem.decode())

    def sign(self, body: bytes) -> Claim:
        """The signature of `body` (RSASSA-PKCS1-v1_5, SHA-256)."""
        return Claim(self.public.fingerprint, self._key.sign(body, PKCS1v15(), SHA256()))


def new_pem() -> str:
    """Generate a new private key in PEM (PKCS #8)."""
    made = generate_private_key(EXPONENT, BITS)
    return made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def reader(reference: str | None, region: str) -> Callable[[], OrderKey]:
    """A function that reads the key from the file in $GPUFLEET_ORDER_KEY_FILE, else from `gpufleet.clouds.secrets`.

    The function raises CloudError, which contains the key's location but never its content.
    """

    def read() -> OrderKey:
        file = os.environ.get(VARIABLE)
        place = f"{VARIABLE} {file}" if file else reference
        if place is None:
            raise CloudError(
                "the fleet document contains no key for orders: an earlier release wrote it; run `pulumi up` of"
                " this one"
            )
        try:
            return OrderKey(Path(file).read_text("utf-8") if file else secrets.read(place, region))
        except KeyFormError as error:
            raise CloudError(f"{place}: {error}") from error
        except UnicodeDecodeError:
            raise CloudError(f"{place}: does not contain a private key in PEM") from None
        except OSError as error:
            raise CloudError(
                f"the key that signs orders cannot be read, so no instance accepts orders: {error}; only the control"
                " host and people with that right may read it (docs/threat-model.md, Orders to agents)"
            ) from error

    return read
