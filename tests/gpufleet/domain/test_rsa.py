"""Signatures of orders: verified without a library, and tested with all known kinds of forgeries."""

import base64
import hashlib
import json
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.padding import MGF1, PSS, PKCS1v15
from cryptography.hazmat.primitives.hashes import SHA1, SHA256, SHA384, SHA512
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from gpufleet.clouds.order_key import OrderKey
from gpufleet.domain.rsa import EXPONENT, KeyFormError, PublicKey, public_key
from gpufleet.toolchain.folders import ROOT
from tests.fixtures import signing

RECORDED = ROOT / "tests" / "recorded" / "signatures" / "wycheproof_rsa_3072_sha256.jsonl"
MESSAGE = b'{"version": 1}'
INFO = bytes.fromhex("3031300d060960864801650304020105000420")
SHA1_INFO = bytes.fromhex("3021300906052b0e03021a05000414")
DIGEST = hashlib.sha256(MESSAGE).digest()


@cache
def private() -> rsa.RSAPrivateKey:
    found = load_pem_private_key(signing.pem().encode(), password=None)
    assert isinstance(found, rsa.RSAPrivateKey)
    return found


def opens_to(encoded: bytes) -> bytes:
    """Return a signature that decrypts to the given bytes; only the key's owner can create it."""
    numbers = private().private_numbers()
    opened = pow(int.from_bytes(encoded, "big"), numbers.d, numbers.public_numbers.n)
    return opened.to_bytes(signing.key().public.size, "big")


def padded(tail: bytes, *, lead: bytes = b"\x00\x01", fill: bytes = b"\xff", gap: bytes = b"\x00") -> bytes:
    size = signing.key().public.size
    return lead + fill * (size - len(lead) - len(gap) - len(tail)) + gap + tail


def short_then(garbage: bytes) -> bytes:
    """Return eight bytes of padding, the digest, and garbage up to the full size (Bleichenbacher 2006)."""
    head = b"\x00\x01" + b"\xff" * 8 + b"\x00" + INFO + DIGEST
    return head + garbage * (signing.key().public.size - len(head))


def at(encoded: bytes, index: int, value: int) -> bytes:
    return encoded[:index] + bytes((value,)) + encoded[index + 1 :]


RIGHT = INFO + DIGEST


def test_a_signature_of_the_correct_encoding_is_valid() -> None:
    """The baseline of the forgeries below: each differs from it as its name describes."""
    assert signing.key().public.verify(MESSAGE, opens_to(padded(RIGHT)))


@pytest.mark.parametrize(
    "encoded",
    [
        pytest.param(lambda: short_then(b"\x00"), id="zeros after the digest"),
        pytest.param(lambda: short_then(b"\xa5"), id="garbage after the digest"),
        pytest.param(lambda: padded(RIGHT, lead=b"\x00\x02"), id="block type 2"),
        pytest.param(lambda: padded(RIGHT, lead=b"\x00\x00"), id="block type 0"),
        pytest.param(lambda: padded(RIGHT, lead=b"\x01\x01"), id="a first byte of 1"),
        pytest.param(lambda: padded(RIGHT, fill=b"\xfe"), id="padding of other bytes"),
        pytest.param(lambda: at(padded(RIGHT), 2, 0xFE), id="one byte of the padding, the first"),
        pytest.param(lambda: at(padded(RIGHT), 150, 0x00), id="one byte of the padding, a zero"),
        pytest.param(lambda: padded(RIGHT, gap=b""), id="no zero before the digest's name"),
        pytest.param(lambda: padded(RIGHT, gap=b"\x00\x00"), id="two zeros before it"),
        pytest.param(lambda: padded(DIGEST), id="no name of the digest"),
        pytest.param(lambda: padded(bytes.fromhex("302f300b06096086480165030402010420") + DIGEST), id="no NULL"),
        pytest.param(lambda: padded(bytes.fromhex("3081") + INFO[1:] + DIGEST), id="a long length (BER)"),
        pytest.param(lambda: padded(INFO.replace(b"\x04\x02\x01", b"\x04\x02\x02") + DIGEST), id="named SHA-384"),
        pytest.param(lambda: padded(SHA1_INFO + hashlib.sha1(MESSAGE).digest()), id="SHA-1"),
        pytest.param(lambda: padded(RIGHT + b"\x00"), id="one byte more"),
        pytest.param(lambda: padded(RIGHT[:-1]), id="one byte less"),
        pytest.param(lambda: padded(INFO + hashlib.sha256(b"other").digest()), id="another message"),
        pytest.param(lambda: DIGEST.rjust(signing.key().public.size, b"\x00"), id="the digest alone"),
    ],
)
def test_a_forged_padding_is_refused(encoded: Callable[[], bytes]) -> None:
    assert not signing.key().public.verify(MESSAGE, opens_to(encoded()))


@pytest.mark.parametrize(
    "sign",
    [
        pytest.param(lambda key: key.sign(MESSAGE, PKCS1v15(), SHA1()), id="SHA-1"),
        pytest.param(lambda key: key.sign(MESSAGE, PKCS1v15(), SHA384()), id="SHA-384"),
        pytest.param(lambda key: key.sign(MESSAGE, PKCS1v15(), SHA512()), id="SHA-512"),
        pytest.param(lambda key: key.sign(MESSAGE, PSS(MGF1(SHA256()), PSS.MAX_LENGTH), SHA256()), id="PSS"),
        pytest.param(lambda key: b"", id="nothing"),
        pytest.param(lambda key: b"\x00" * 256, id="zero"),
        pytest.param(lambda key: b"\x00" * 255 + b"\x01", id="one"),
        pytest.param(lambda key: (signing.key().public.modulus - 1).to_bytes(256, "big"), id="the modulus less one"),
        pytest.param(lambda key: signing.key().public.modulus.to_bytes(256, "big"), id="the modulus"),
        pytest.param(lambda key: b"\xff" * 256, id="as large as can be"),
    ],
)  # fmt: skip
def test_another_signature_is_refused(sign: Callable[[rsa.RSAPrivateKey], bytes]) -> None:
    assert not signing.key().public.verify(MESSAGE, sign(private()))


def test_a_valid_signature_with_another_length_or_above_the_modulus_is_refused() -> None:
    public, signature = signing.key().public, signing.key().sign(MESSAGE).signature
    assert public.verify(MESSAGE, signature)
    number = int.from_bytes(signature, "big")
    beyond = (number + public.modulus).to_bytes(public.size + 1, "big")
    for other in (signature + b"\x00", b"\x00" + signature, signature[:-1], signature[1:], beyond):
        assert not public.verify(MESSAGE, other)
    if (number + public.modulus).bit_length() <= public.size * 8:
        assert not public.verify(MESSAGE, beyond[1:])
    for index in range(0, public.size, 17):
        assert not public.verify(MESSAGE, at(signature, index, signature[index] ^ 1))
    assert not public.verify(MESSAGE + b" ", signature)
    assert not signing.key("another").public.verify(MESSAGE, signature)


def test_every_vector_of_wycheproof_has_the_expected_result() -> None:
    """259 signatures. A missing NULL, which some libraries accept, is refused, and so is a key with exponent 3."""
    judged, key = 0, None
    for line in RECORDED.read_text().splitlines():
        vector = json.loads(line)
        if "key" in vector:
            try:
                key = public_key(base64.b64encode(bytes.fromhex(vector["key"])).decode())
            except KeyFormError:
                key = None
            continue
        judged += 1
        right = key is not None and key.verify(bytes.fromhex(vector["msg"]), bytes.fromhex(vector["sig"]))
        with_exponent_3 = vector["comment"] == "small signature"
        assert right == (vector["result"] == "valid" and not with_exponent_3), vector["comment"]
    assert judged == 259


def test_signatures_of_openssl_are_valid(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text(signing.pem())
    (tmp_path / "key.pem").chmod(0o600)
    command = ["openssl", "dgst", "-sha256", "-sign", str(tmp_path / "key.pem")]
    signature = subprocess.run(command, input=MESSAGE, capture_output=True, check=True).stdout
    assert signing.key().public.verify(MESSAGE, signature)


def spki(numbers: rsa.RSAPublicNumbers) -> str:
    return base64.b64encode(
        numbers.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    ).decode()


def test_a_key_is_read_from_pem_and_from_base64_and_has_one_name() -> None:
    pem = private().public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    found = public_key(pem)
    assert found == public_key(found.text) == signing.key().public
    der = private().public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert (found.der, found.fingerprint) == (der, hashlib.sha256(der).hexdigest())
    assert found.modulus == private().public_key().public_numbers().n


def with_trailing(text: str) -> str:
    return base64.b64encode(base64.b64decode(text) + b"\x00").decode()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(lambda: signing.pem(), "is a private key", id="a private key"),
        pytest.param(lambda: "", "is not an RSA public key", id="nothing"),
        pytest.param(lambda: "ssh-rsa AAAAB3NzaC1yc2E=", "is not an RSA public key", id="an SSH key"),
        pytest.param(lambda: "!" * 300, "is not an RSA public key", id="no base64"),
        pytest.param(lambda: base64.b64encode(b"\x30\x82" * 100).decode(), "is not an RSA public key", id="no DER"),
        pytest.param(
            lambda: base64.b64encode(
                ec.generate_private_key(ec.SECP256R1()).public_key().public_bytes(
                    Encoding.DER, PublicFormat.SubjectPublicKeyInfo
                )
            ).decode(), "is not an RSA public key", id="a key of a curve",
        ),
        pytest.param(
            lambda: private().public_key().public_bytes(Encoding.PEM, PublicFormat.PKCS1).decode(),
            "is not an RSA public key", id="PKCS #1",
        ),
        pytest.param(
            lambda: spki(rsa.RSAPublicNumbers(3, signing.key().public.modulus)), "exponent 65537", id="exponent 3"
        ),
        pytest.param(
            lambda: base64.b64encode(PublicKey(signing.key().public.modulus * 2).der).decode(),
            "is not an RSA public key", id="an even modulus",
        ),
        pytest.param(lambda: PublicKey((1 << 1023) | 1).text, "has 1024 bits, must have 2048 to 4096", id="small"),
        pytest.param(lambda: PublicKey((1 << 2046) | 1).text, "has 2047 bits", id="a bit too small"),
        pytest.param(lambda: PublicKey((1 << 8191) | 1).text, "has 8192 bits", id="large"),
        pytest.param(lambda: with_trailing(signing.key().public.text), "is not an RSA public key", id="a byte more"),
    ],
)  # fmt: skip
def test_an_invalid_key_for_orders(text: Callable[[], str], message: str) -> None:
    with pytest.raises(KeyFormError, match=message) as refused:
        public_key(text())
    assert not text() or text()[:40] not in str(refused.value)


def test_a_forged_signature_of_a_small_exponent_would_not_pass_either() -> None:
    """With exponent 3, a cube root would decrypt to the digest followed by garbage; the whole text is compared."""
    wanted = int.from_bytes(short_then(b"\x00"), "big")
    low, high = 0, 1 << 700
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if middle**3 < wanted else (low, middle)
    forged = low.to_bytes(256, "big")
    assert pow(low, 3).to_bytes(256, "big").startswith(short_then(b"")[:20]), "the attack works on a parser"
    assert EXPONENT == 65537
    assert not signing.key().public.verify(MESSAGE, forged)


def test_the_error_of_an_invalid_private_key_shows_none_of_it() -> None:
    curve = ec.generate_private_key(ec.SECP256R1())
    pem = curve.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    for text, message in (
        ("correct-horse-battery", "contain a private key"),
        ("", "contain a private key"),
        (pem, "not RSA"),
    ):
        with pytest.raises(KeyFormError, match=message) as refused:
            OrderKey(text)
        assert not text or text[:20] not in str(refused.value)
    with pytest.raises(KeyFormError, match="has 1024 bits"):
        OrderKey(signing.pem("small", 1024))
