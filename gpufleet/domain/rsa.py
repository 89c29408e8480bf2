"""Verifies RSA signatures with only the standard library: RSASSA-PKCS1-v1_5 with SHA-256 (RFC 8017, 8.2.2).

The decrypted signature is compared as a whole with the only valid encoding. It is not parsed: forged paddings
(Bleichenbacher 2006) exploit parsers.
"""

import base64
import binascii
import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import Final

MIN_BITS: Final = 2048
MAX_BITS: Final = 4096
"""A larger key gives no benefit and costs the agent time for each order."""
EXPONENT: Final = 65537
"""The only accepted public exponent: small exponents make forged paddings easy."""
_SHA256_INFO: Final = bytes.fromhex("3031300d060960864801650304020105000420")
"""DER prefix of DigestInfo for SHA-256; the digest follows (RFC 8017, 9.2, note 1)."""
_ALGORITHM: Final = bytes.fromhex("300d06092a864886f70d0101010500")
"""DER of the algorithm rsaEncryption with its NULL (RFC 8017, A.1)."""
_PEM: Final = re.compile(r"\s*-----BEGIN PUBLIC KEY-----([A-Za-z0-9+/=\s]+)-----END PUBLIC KEY-----\s*")
_INTEGER, _BITS, _SEQUENCE = 0x02, 0x03, 0x30


class KeyFormError(ValueError):
    """A text is not a usable public key. The message gives the reason, never the text."""


@dataclass(frozen=True, slots=True)
class PublicKey:
    """An RSA public key with the exponent 65537."""

    modulus: int

    @property
    def size(self) -> int:
        """Size of a signature in bytes."""
        return (self.modulus.bit_length() + 7) // 8

    @property
    def der(self) -> bytes:
        """SubjectPublicKeyInfo (RFC 5280, 4.1)."""
        numbers = _tagged(_SEQUENCE, _integer(self.modulus) + _integer(EXPONENT))
        return _tagged(_SEQUENCE, _ALGORITHM + _tagged(_BITS, b"\0" + numbers))

    @property
    def text(self) -> str:
        """Base64 of `der` in one line: the format in settings."""
        return base64.b64encode(self.der).decode()

    @property
    def fingerprint(self) -> str:
        """SHA-256 of `der` in hex: the key's name in orders, statuses and messages."""
        return hashlib.sha256(self.der).hexdigest()

    def may_verify(self, signature: bytes) -> bool:
        """Return whether a signature can be from this key: right length, and a number below the modulus."""
        return len(signature) == self.size and int.from_bytes(signature, "big") < self.modulus

    def verify(self, message: bytes, signature: bytes) -> bool:
        """Return whether the signature of these bytes is valid."""
        if not self.may_verify(signature):
            return False
        opened = pow(int.from_bytes(signature, "big"), EXPONENT, self.modulus).to_bytes(self.size, "big")
        return hmac.compare_digest(opened, _encoded(message, self.size))


def public_key(text: str) -> PublicKey:
    """Parse SubjectPublicKeyInfo in PEM or as base64 in one line. Raises KeyFormError."""
    if "PRIVATE KEY" in text:
        raise KeyFormError("is a private key")
    pem = _PEM.fullmatch(text)
    try:
        der = base64.b64decode("".join((pem[1] if pem else text).split()), validate=True)
        key = PublicKey(_modulus(der))
    except (binascii.Error, IndexError, ValueError) as error:
        raise KeyFormError(
            "is not an RSA public key in PEM or base64 (SubjectPublicKeyInfo, exponent 65537)"
        ) from error
    bits = key.modulus.bit_length()
    if not MIN_BITS <= bits <= MAX_BITS:
        raise KeyFormError(f"has {bits} bits, must have {MIN_BITS} to {MAX_BITS}")
    return key


def _modulus(der: bytes) -> int:
    """Return the modulus from a key's DER. Raises IndexError, ValueError."""
    # Locate the number without strict checks; then the whole DER must equal the encoding of this module.
    fields = _content(_SEQUENCE, der)
    if not fields.startswith(_ALGORITHM):
        raise ValueError("another algorithm")
    numbers = _content(_SEQUENCE, _content(_BITS, fields[len(_ALGORITHM) :])[1:])
    modulus = int.from_bytes(_content(_INTEGER, numbers), "big")
    if modulus % 2 == 0 or PublicKey(modulus).der != der:
        raise ValueError("another exponent, or not DER")
    return modulus


def _encoded(message: bytes, size: int) -> bytes:
    """EMSA-PKCS1-v1_5 (RFC 8017, 9.2)."""
    digest = _SHA256_INFO + hashlib.sha256(message).digest()
    return b"\x00\x01" + b"\xff" * (size - len(digest) - 3) + b"\x00" + digest


def _integer(number: int) -> bytes:
    # Reserve one more bit: the first bit of a positive number is 0.
    return _tagged(_INTEGER, number.to_bytes(number.bit_length() // 8 + 1, "big"))


def _tagged(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content


def _content(tag: int, der: bytes) -> bytes:
    """Return the content of the first element of `der`. Raises IndexError, ValueError."""
    if der[0] != tag:
        raise ValueError("another element")
    begin, size = 2, der[1]
    if size & 0x80:
        begin += size & 0x7F
        size = int.from_bytes(der[2:begin], "big")
    return der[begin : begin + size]
