"""Tests of access to secrets: instances and routers read the engine key, and the control host reads the order signing
key.
"""

import base64
import hashlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from components.aws import permissions
from gpufleet.domain.model import CapacityType
from gpufleet.domain.rsa import PublicKey, public_key
from gpufleet.settings import document
from gpufleet.settings.document import DocumentError, Origin
from gpufleet.settings.problems import SettingsError
from serving.instance_settings import to_json
from stacks.document import describe
from stacks.local_key import VARIABLE, with_local_key
from stacks.pools import instance_settings, secrets_of_control
from stacks.reading import parse
from tests.fixtures import signing
from tests.fixtures.stacks.settings_files import AWS, FLEET, GCP, TODAY, changed, file, problems

ORIGIN = Origin(project="p", stack="s", revision="r", at=datetime(2026, 11, 21, tzinfo=UTC))
PUBLIC = signing.key().public
OTHER = signing.key("other").public
PEM = "-----BEGIN PUBLIC KEY-----\n" + base64.encodebytes(PUBLIC.der).decode() + "-----END PUBLIC KEY-----\n"
CHANGES = {"orders.public_keys": [PEM, OTHER.text]}
STACKS = [f"{cloud}-{name}" for cloud in ("aws", "gcp") for name in ("local", "dev", "staging", "prod")]


def written(config: dict[str, Any], changes: dict[str, Any] | None = None) -> str:
    settings = parse(changed(config, changes or {}), "file", TODAY)
    return describe(settings, {pool.name: () for pool in settings.pools}, "s3://models", ORIGIN)


@pytest.mark.parametrize(
    ("config", "place"),
    [(AWS, "ssm:/gpu-fleet/prod/"), (GCP, "gcp-secret:projects/example-project/secrets/gpu-fleet-prod-")],
    ids=["aws", "gcp"],
)
def test_both_sides_receive_the_same_keys_and_each_its_own_secret(config: dict[str, Any], place: str) -> None:
    settings = parse(changed(config, CHANGES), "file", TODAY)
    found = document.parse(written(config, CHANGES), "fleet.json")
    instance = to_json(instance_settings(settings, settings.pools[0], CapacityType.SPOT))
    assert instance["engine_key"] == found.engine_key == f"{place}engine-key"
    assert instance["order_keys"] == [PUBLIC.text, OTHER.text]
    assert found.orders is not None
    assert found.orders.private_key == f"{place}order-key"
    assert list(found.orders.public_keys) == instance["order_keys"]
    assert found.orders.fingerprints == (PUBLIC.fingerprint, OTHER.fingerprint)
    assert "order-key" not in str(instance), "an instance does not know the secret of the private key"


@pytest.mark.parametrize("config", [AWS, GCP], ids=["aws", "gcp"])
def test_an_instance_reads_only_the_engine_key_and_the_control_host_the_private_key(
    config: dict[str, Any],
) -> None:
    settings = parse(config, "file", TODAY)
    both = {settings.engine_key, settings.orders.private_key}
    assert both <= set(secrets_of_control(settings, settings.control))
    place = {"bucket": "b", "region": "r", "account": "1", "environment": "prod"}
    granted = permissions.of_instances(**place, engine_key=settings.engine_key)
    (reading,) = [one for one in granted if "ssm:GetParameter" in one.actions]
    assert reading.resources == (f"arn:aws:ssm:r:1:parameter/{settings.engine_key.lstrip('/')}",)


@pytest.mark.parametrize("config", [AWS, GCP], ids=["aws", "gcp"])
@pytest.mark.parametrize("field", ["engine_key", "orders.private_key"])
def test_a_document_that_names_a_foreign_secret_is_refused(config: dict[str, Any], field: str) -> None:
    """The reader uses its own permissions for the secret, which may be an administrator's."""
    text = written(config)
    name = "engine-key" if field == "engine_key" else "order-key"
    foreign = {
        "ssm:/gpu-fleet/prod/": [
            "ssm:/prod/db/",
            "ssm:/gpu-fleet/dev/",
            "ssm:gpu-fleet/prod/",
            "file:/gpu-fleet/prod/",
        ],
        "secrets/gpu-fleet-prod-": ["secrets/prod-db-", "secrets/gpu-fleet-dev-"],
    }
    tried = [
        text.replace(f"{own}{name}", f"{other}{name}")
        for own, others in foreign.items()
        for other in others
        if own in text
    ]
    assert tried
    for changed_text in tried:
        assert changed_text != text
        with pytest.raises(DocumentError, match=f"{field}: is not a secret of prod: its name must begin with"):
            document.parse(changed_text, "fleet.json")


def test_a_document_without_signed_orders_is_still_valid() -> None:
    """This happens when the control host is upgraded before `pulumi up` writes the new document."""
    found = document.parse(written(AWS), "fleet.json")
    before = found.model_dump_json(exclude={"engine_key", "orders"})
    before = before.replace('"bucket":', '"agent_token": "ssm:/gpu-fleet/prod/agent-token", "bucket":', 1)
    read = document.parse(before, "fleet.json")
    assert (read.engine_key, read.orders) == (None, None)


def bad(keys: list[str]) -> list[str]:
    return [line.removeprefix(f"{FLEET}.orders.") for line in problems(changed(AWS, {"orders.public_keys": keys}))]


def test_unusable_public_keys_are_reported() -> None:
    wanted = "write the key in use (`gpufleet bootstrap` prints it) and, during a key rotation, also the new key"
    print_it = "write the key that `gpufleet bootstrap` prints"
    assert bad([]) == [f"public_keys: must contain one or two keys (is 0); {wanted}"]
    three = [PUBLIC.text, OTHER.text, signing.key("third").public.text]
    assert bad(three) == [f"public_keys: must contain one or two keys (is 3); {wanted}"]
    assert bad([PUBLIC.text, PEM]) == ["public_keys.1: repeats a key; remove it"]
    assert bad([PublicKey((1 << 1023) | 1).text]) == [
        f"public_keys.0: has 1024 bits, must have 2048 to 4096; {print_it}"
    ]
    no_key = f"is not an RSA public key in PEM or base64 (SubjectPublicKeyInfo, exponent 65537); {print_it}"
    assert bad(["ssm:/gpu-fleet/prod/order-key", PUBLIC.text]) == [f"public_keys.0: {no_key}"]


def test_a_private_key_in_the_settings_is_refused_and_not_shown() -> None:
    (line,) = bad([signing.pem()])
    assert line == "public_keys.0: is a private key; create a new key pair, because this private key is exposed"
    (line,) = problems(changed(AWS, {"orders.private_key": signing.pem()}))
    assert "orders.private_key: looks like a private key" in line
    assert signing.pem().splitlines()[2] not in line


def test_one_secret_for_both_is_refused() -> None:
    (line,) = problems(changed(AWS, {"orders.private_key": "/gpu-fleet/prod/engine-key"}))
    assert "orders.private_key: is also the secret of engine_key" in line


@pytest.mark.parametrize("stack", STACKS)
def test_the_example_key_has_no_private_key(stack: str) -> None:
    """Its modulus is the hash of a sentence, so no private key exists. An example key left in the settings gives
    access to no one.
    """
    sentence = b"gpu-fleet: an example's public key %d"
    stream = b"".join(hashlib.sha256(sentence % number).digest() for number in range(12))
    modulus = int.from_bytes(stream, "big") | 1 << 3071 | 1
    (key,) = file(stack)[FLEET]["orders"]["public_keys"]
    assert public_key(key) == PublicKey(modulus)


def test_only_the_embedded_environment_uses_the_key_of_this_clone(tmp_path: Path) -> None:
    place = tmp_path / "order-key.pub"
    place.write_text(f"{PUBLIC.text}\n")
    local, prod = (parse(config, "file", TODAY) for config in (file("aws-local"), AWS))
    set_to = {VARIABLE: str(place)}
    assert with_local_key(local, set_to).orders.public_keys == (PUBLIC.text,)
    assert with_local_key(local, {}) == local
    assert with_local_key(prod, set_to) == prod
    place.unlink()
    with pytest.raises(SettingsError, match="run `gpufleet local up`"):
        with_local_key(local, set_to)
