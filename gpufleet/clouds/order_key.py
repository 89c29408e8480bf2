"""The private key that orders to node agents are signed with: made, read from where it is kept, used."""

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
"""Of a new key: 128 bits of security (NIST SP 800-57, part 1, table 2)."""
VARIABLE: Final = "GPUFLEET_ORDER_KEY_FILE"
"""Names a PEM file that is read in place of the secret."""


class OrderKey:
    """Signs. Raises KeyFormError for a text that holds no such key; it names no part of the text."""

    def __init__(self, text: str) -> None:
        hide(text)
        try:
            key = load_pem_private_key(text.encode(), password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            # not the cause: a parser's message may quote what it read
            raise KeyFormError("holds no private key in PEM without a password") from None
        if not isinstance(key, RSAPrivateKey):
            raise KeyFormError("holds a private key that is not RSA")
        self._key = key
        pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        self.public: PublicKey = public_key(pem.decode())

    def sign(self, body: bytes) -> Claim:
        """The signature of these bytes (RSASSA-PKCS1-v1_5, SHA-256)."""
        return Claim(self.public.fingerprint, self._key.sign(body, PKCS1v15(), SHA256()))


def new_pem() -> str:
    """A new private key (PKCS #8)."""
    made = generate_private_key(EXPONENT, BITS)
    return made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def reader(reference: str | None, region: str) -> Callable[[], OrderKey]:
    """The key from the file that $GPUFLEET_ORDER_KEY_FILE names, else from `gpufleet.clouds.secrets`.

    What it gives raises CloudError that names the place and who may read it, and shows nothing of what lies there.
    """

    def read() -> OrderKey:
        file = os.environ.get(VARIABLE)
        place = f"{VARIABLE} {file}" if file else reference
        if place is None:
            raise CloudError(
                "the fleet document names no key for orders: an earlier release wrote it; run `pulumi up` of this one"
            )
        try:
            return OrderKey(Path(file).read_text("utf-8") if file else secrets.read(place, region))
        except KeyFormError as error:
            raise CloudError(f"{place}: {error}") from error
        except UnicodeDecodeError:
            raise CloudError(f"{place}: holds no private key in PEM") from None
        except OSError as error:
            raise CloudError(
                f"the key that signs orders cannot be read, so no instance takes one: {error}; the control host may"
                " read it, and people with that right (docs/security.md, Orders to agents)"
            ) from error

    return read
