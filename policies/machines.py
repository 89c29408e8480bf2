"""Rules on the start configuration of instances: metadata service, logins, accounts, disks."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gpufleet.domain.parsed import is_list, is_map
from policies.context import Context
from policies.plan import Made
from policies.resource import (
    ACCOUNT,
    AWS_INSTANCE,
    GCP_COPIES,
    GCP_GROUPS,
    GCP_TEMPLATES,
    LAUNCH_TEMPLATE,
    PROFILE,
    RUNS_INSTANCES,
    UNKNOWN,
    Resource,
    is_false,
    is_true,
    known,
    number,
)
from policies.resource_types import let_pass
from policies.rule import Rule, Violation, Wrong

_MOST_HOPS: Final = 1
"""Hop limit of a metadata response. With 1 it reaches the machine itself, but no container behind a bridge."""
_MOST_HOPS_OF_ONE: Final = 2
"""Hop limit for an instance outside every pool, which may run its software in a container."""
_ROOT_DEVICES: Final = ("/dev/sda1", "/dev/xvda")
"""Names of the root disk in AWS images."""
_DEFAULT_ACCOUNT: Final = re.compile(
    r"default|.*-compute@developer\.gserviceaccount\.com|.*@appspot\.gserviceaccount\.com"
)
_PROJECT_METADATA: Final = "gcp:compute/projectMetadata:ProjectMetadata"
_PROJECT_METADATA_ITEM: Final = "gcp:compute/projectMetadataItem:ProjectMetadataItem"
_KEYS: Final = ("ssh-keys", "sshKeys", "windows-keys")
_SCRIPTS_ELSEWHERE: Final = ("startup-script-url", "shutdown-script-url")
_TEMPLATES: Final = GCP_TEMPLATES - GCP_COPIES - {"gcp:compute/instance:Instance"}
_COPIES_OF_DISKS: Final = frozenset({"aws:ebs/snapshotCopy:SnapshotCopy", "aws:ec2/amiCopy:AmiCopy"})


def _metadata(resource: Resource, _: Context) -> Iterator[Wrong]:
    if resource.type in RUNS_INSTANCES:
        yield from _metadata_options(resource)
    elif resource.type in GCP_TEMPLATES:
        if resource.type in GCP_COPIES and resource.at("shieldedInstanceConfig") is None:
            return  # the source of the copy is checked
        for key in ("enableSecureBoot", "enableVtpm", "enableIntegrityMonitoring"):
            if not is_true(value := resource.at("shieldedInstanceConfig", key)):
                yield Wrong(path=f"shieldedInstanceConfig.{key}", value=value, says="must be true")


def _metadata_options(resource: Resource) -> Iterator[Wrong]:
    options = "metadataOptions"
    if resource.at(options, "httpEndpoint") == "disabled":
        return
    tokens = resource.at(options, "httpTokens")
    if tokens != "required":
        yield Wrong(path=f"{options}.httpTokens", value=tokens, says="must be required")
    hops = resource.at(options, "httpPutResponseHopLimit")
    most = _MOST_HOPS_OF_ONE if resource.type == AWS_INSTANCE else _MOST_HOPS
    if hops is not None and ((said := number(hops)) is None or said > most):
        yield Wrong(path=f"{options}.httpPutResponseHopLimit", value=hops, says=f"must be at most {most}")
    tags = resource.at(options, "instanceMetadataTags")
    if tags not in (None, "disabled"):
        yield Wrong(path=f"{options}.instanceMetadataTags", value=tags, says="must be disabled")


def _access(resource: Resource, _: Context) -> Iterator[Wrong]:
    kind = resource.type
    if kind in RUNS_INSTANCES:
        if (key := resource.at("keyName")) not in (None, ""):
            yield Wrong(path="keyName", value=key, says="lets in whoever has the key; leave it out")
        if not ((check := resource.at("sourceDestCheck")) is None or is_true(check)):
            yield Wrong(path="sourceDestCheck", value=check, says="must be true: it forwards nobody's packets")
    elif kind in GCP_TEMPLATES:
        # OS Login is required for instances of pools; another instance may inherit it from its project
        yield from _of_metadata(resource.at("metadata"), "metadata", needs_login=kind in _TEMPLATES)
        yield from _account(resource)
        if not ((forward := resource.at("canIpForward")) is None or is_false(forward)):
            yield Wrong(path="canIpForward", value=forward, says="must be false: it forwards nobody's packets")
    elif kind in GCP_GROUPS:
        # a group's metadata overrides its template's
        yield from _of_metadata(resource.at("allInstancesConfig", "metadata"), "allInstancesConfig.metadata")
    elif kind == _PROJECT_METADATA:
        yield from _of_metadata(resource.at("metadata"), "metadata")
    elif kind == _PROJECT_METADATA_ITEM:
        key = resource.at("key")
        yield from _of_metadata({key: resource.at("value")} if isinstance(key, str) else key, "value")


def _of_metadata(metadata: Any, path: str, *, needs_login: bool = False) -> Iterator[Wrong]:
    if metadata is not None and not is_map(metadata):
        yield Wrong(path=path, value=metadata, says="must be known: it may hold keys")
        return
    said: Mapping[str, Any] = metadata or {}
    for key in _KEYS:
        if (value := said.get(key)) not in (None, ""):
            yield Wrong(path=f"{path}.{key}", value=value, says="lets in whoever has the key; leave it out")
    for key in _SCRIPTS_ELSEWHERE:
        if (value := said.get(key)) not in (None, ""):
            yield Wrong(path=f"{path}.{key}", value=value, says="runs what others may change; give the script itself")
    login = said.get("enable-oslogin")
    if not is_true(login) and (login is not None or needs_login):
        yield Wrong(path=f"{path}.enable-oslogin", value=login, says="must be TRUE: people log in as themselves")
    serial = said.get("serial-port-enable")
    if not (serial is None or is_false(serial) or serial in ("", "0")):
        yield Wrong(path=f"{path}.serial-port-enable", value=serial, says="must be false: it passes every firewall")


def _account(resource: Resource) -> Iterator[Wrong]:
    account = resource.at("serviceAccount")
    if account is UNKNOWN:
        yield Wrong(path="serviceAccount", value=account, says="must be known")
    elif account is not None:
        email = resource.at("serviceAccount", "email")
        if email in (None, "") or (isinstance(email, str) and _DEFAULT_ACCOUNT.fullmatch(email)):
            yield Wrong(
                path="serviceAccount.email",
                value=email,
                says="is the project's default account, which may have every right; name one of its own",
            )


def _identities(resources: Sequence[Resource], context: Context) -> Iterator[Violation]:
    """The plan must create the identities of instances, so that the other rules check their permissions."""
    made = Made(resource for resource in resources if resource.type in (ACCOUNT, PROFILE))
    for resource in resources:
        if let_pass(resource, context):
            continue  # an exception names the resource
        for key, path, value in _acts_as(resource):
            if not made.has(value, resource.depends.get(key, ())):
                wrong = "must be one that this plan makes: nobody judged the rights of another"
                yield Wrong(path=path, value=value, says=wrong).on(resource)


def _acts_as(resource: Resource) -> Iterator[tuple[str, str, Any]]:
    """Yield property, path and value of each reference to an instance profile or service account."""
    if resource.type in GCP_TEMPLATES:
        key, inner = "serviceAccount", ("email",)
    elif resource.type in RUNS_INSTANCES:
        key, inner = "iamInstanceProfile", ("arn", "name")
    else:
        return
    value = resource.at(key)
    named = [(f"{key}.{part}", value.get(part)) for part in inner] if is_map(value) else [(key, value)]
    said = [(path, one) for path, one in named if one not in (None, "")]
    # the state has all identifiers of a reference although the program set one; a value that the provider leaves
    # unknown was not set
    known_ones = [(path, one) for path, one in said if one is not UNKNOWN]
    unknown_ones = said[:1] if key in resource.depends or is_map(value) else []
    for path, one in known_ones[:1] or unknown_ones:
        yield key, path, one


def _disks(resource: Resource, _: Context) -> Iterator[Wrong]:
    kind = resource.type
    if kind == LAUNCH_TEMPLATE:
        yield from _mapped_disks(resource.at("blockDeviceMappings"))
    elif kind in RUNS_INSTANCES:
        yield from _must_be_true(resource, "rootBlockDevice", "encrypted")
        disks = resource.at("ebsBlockDevices")
        if disks is UNKNOWN:
            yield Wrong(path="ebsBlockDevices", value=disks, says="must be known")
        for index in range(len(disks) if is_list(disks) else 0):
            yield from _must_be_true(resource, "ebsBlockDevices", index, "encrypted")
    elif kind == "aws:ebs/volume:Volume" or kind in _COPIES_OF_DISKS:
        yield from _must_be_true(resource, "encrypted")
    elif kind == "aws:ebs/encryptionByDefault:EncryptionByDefault" and resource.at("enabled") is not None:
        yield from _must_be_true(resource, "enabled")


def _mapped_disks(mappings: Any) -> Iterator[Wrong]:
    path = "blockDeviceMappings"
    if not is_list(mappings) or not mappings:
        yield Wrong(
            path=path, value=mappings, says="must list the root disk; else the image decides about encryption"
        )
        return
    for index, mapping in enumerate(mappings):
        disk = mapping.get("ebs") if is_map(mapping) else UNKNOWN
        if not is_map(disk):
            yield Wrong(path=f"{path}[{index}].ebs", value=disk, says="must be given; else the image decides")
        elif not is_true(value := disk.get("encrypted")):
            yield Wrong(path=f"{path}[{index}].ebs.encrypted", value=value, says="must be true")
    names = [mapping.get("deviceName") for mapping in mappings if is_map(mapping)]
    # AWS accepts no mapping without a device name
    if any(known(name) for name in names) and not any(name in _ROOT_DEVICES for name in names):
        yield Wrong(
            path=path,
            value=names,
            says=f"maps no root disk ({' or '.join(_ROOT_DEVICES)}): the image decides about it",
        )


def _must_be_true(resource: Resource, *path: str | int) -> Iterator[Wrong]:
    if not is_true(value := resource.at(*path)):
        name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
        yield Wrong(path=name, value=value, says="must be true")


RULES: Final = (
    Rule(
        id="metadata-protected",
        reason="A request forged through the engine must not read the instance's credentials or boot another system.",
        remedy="Require IMDSv2 tokens and one hop on AWS, a Shielded VM on Google Cloud.",
        of_one=_metadata,
        judges="metadataOptions (AWS) and shieldedInstanceConfig (Google Cloud) of templates and instances",
    ),
    Rule(
        id="instance-access-managed",
        reason="A key or an account that many share says nothing about who used it, and outlives their jobs.",
        remedy="People come through SSM or IAP with OS Login; a machine acts as an account of its own.",
        of_one=_access,
        of_all=_identities,
        judges=(
            "keyName, sourceDestCheck and iamInstanceProfile (AWS); metadata, serviceAccount and canIpForward of "
            "templates, instances, groups and the project (Google Cloud)"
        ),
    ),
    Rule(
        id="disks-encrypted",
        reason="Disks outlive instances.",
        remedy="Set encrypted to true, for the root disk too.",
        of_one=_disks,
        judges="block devices of templates and instances of AWS, volumes, copies of snapshots; Google encrypts all",
    ),
)
