"""Key pairs that sign orders in tests: made when they are first asked for, once in each process."""

from functools import cache

from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from gpufleet.clouds.order_key import OrderKey
from gpufleet.domain.rsa import EXPONENT, LEAST_BITS

ENGINE_KEY = "e" * 64
"""What engines ask of their clients in tests."""


def pem(name: str = "control host", bits: int = LEAST_BITS) -> str:
    """A private key of that name, another one for each."""
    return _made(name, bits)


@cache
def _made(_name: str, bits: int) -> str:
    made = generate_private_key(EXPONENT, bits)
    return made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def key(name: str = "control host") -> OrderKey:
    """The same, ready to sign."""
    return OrderKey(pem(name))
