"""Rules on the start configuration of instances: metadata service, logins, accounts, disks."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gpufleet.domain.parsed import is_list, is_map
from policies.context import Context
from policies.plan import PlanIndex
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
from policies.resource_types import is_excepted
from policies.rule import PropertyProblem, Rule, Violation

_MAX_HOPS: Final = 1
"""Hop limit of a metadata response. With 1 it reaches the machine itself, but no container behind a bridge."""
_MAX_HOPS_OF_ONE: Final = 2
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


def _metadata(resource: Resource, _: Context) -> Iterator[PropertyProblem]:
    if resource.type in RUNS_INSTANCES:
        yield from _metadata_options(resource)
    elif resource.type in GCP_TEMPLATES:
        if resource.type in GCP_COPIES and resource.at("shieldedInstanceConfig") is None:
            return  # the source of the copy is checked
        for key in ("enableSecureBoot", "enableVtpm", "enableIntegrityMonitoring"):
            if not is_true(value := resource.at("shieldedInstanceConfig", key)):
                yield PropertyProblem(path=f"shieldedInstanceConfig.{key}", value=value, message="must be true")


def _metadata_options(resource: Resource) -> Iterator[PropertyProblem]:
    options = "metadataOptions"
    if resource.at(options, "httpEndpoint") == "disabled":
        return
    tokens = resource.at(options, "httpTokens")
    if tokens != "required":
        yield PropertyProblem(path=f"{options}.httpTokens", value=tokens, message="must be required")
    hops = resource.at(options, "httpPutResponseHopLimit")
    most = _MAX_HOPS_OF_ONE if resource.type == AWS_INSTANCE else _MAX_HOPS
    if hops is not None and ((limit := number(hops)) is None or limit > most):
        yield PropertyProblem(
            path=f"{options}.httpPutResponseHopLimit", value=hops, message=f"must be at most {most}"
        )
    tags = resource.at(options, "instanceMetadataTags")
    if tags not in (None, "disabled"):
        yield PropertyProblem(path=f"{options}.instanceMetadataTags", value=tags, message="must be disabled")


def _access(resource: Resource, _: Context) -> Iterator[PropertyProblem]:
    kind = resource.type
    if kind in RUNS_INSTANCES:
        if (key := resource.at("keyName")) not in (None, ""):
            yield PropertyProblem(path="keyName", value=key, message="allows logins with a shared key; leave it out")
        if not ((check := resource.at("sourceDestCheck")) is None or is_true(check)):
            yield PropertyProblem(
                path="sourceDestCheck", value=check, message="must be true, because instances do not forward packets"
            )
    elif kind in GCP_TEMPLATES:
        # OS Login is required for instances of pools; another instance may inherit it from its project
        yield from _of_metadata(resource.at("metadata"), "metadata", needs_login=kind in _TEMPLATES)
        yield from _account(resource)
        if not ((forward := resource.at("canIpForward")) is None or is_false(forward)):
            yield PropertyProblem(
                path="canIpForward", value=forward, message="must be false, because instances do not forward packets"
            )
    elif kind in GCP_GROUPS:
        # a group's metadata overrides its template's
        yield from _of_metadata(resource.at("allInstancesConfig", "metadata"), "allInstancesConfig.metadata")
    elif kind == _PROJECT_METADATA:
        yield from _of_metadata(resource.at("metadata"), "metadata")
    elif kind == _PROJECT_METADATA_ITEM:
        key = resource.at("key")
        yield from _of_metadata({key: resource.at("value")} if isinstance(key, str) else key, "value")


def _of_metadata(metadata: Any, path: str, *, needs_login: bool = False) -> Iterator[PropertyProblem]:
    if metadata is not None and not is_map(metadata):
        yield PropertyProblem(path=path, value=metadata, message="must be known, because it may contain keys")
        return
    items: Mapping[str, Any] = metadata or {}
    for key in _KEYS:
        if (value := items.get(key)) not in (None, ""):
            yield PropertyProblem(
                path=f"{path}.{key}", value=value, message="allows logins with a shared key; leave it out"
            )
    for key in _SCRIPTS_ELSEWHERE:
        if (value := items.get(key)) not in (None, ""):
            yield PropertyProblem(
                path=f"{path}.{key}",
                value=value,
                message="runs a script that others can change; write the script itself",
            )
    login = items.get("enable-oslogin")
    if not is_true(login) and (login is not None or needs_login):
        yield PropertyProblem(
            path=f"{path}.enable-oslogin",
            value=login,
            message="must be TRUE, so that people log in with their own accounts",
        )
    serial = items.get("serial-port-enable")
    if not (serial is None or is_false(serial) or serial in ("", "0")):
        yield PropertyProblem(
            path=f"{path}.serial-port-enable",
            value=serial,
            message="must be false, because the serial port bypasses firewalls",
        )


def _account(resource: Resource) -> Iterator[PropertyProblem]:
    account = resource.at("serviceAccount")
    if account is UNKNOWN:
        yield PropertyProblem(path="serviceAccount", value=account, message="must be known")
    elif account is not None:
        email = resource.at("serviceAccount", "email")
        if email in (None, "") or (isinstance(email, str) and _DEFAULT_ACCOUNT.fullmatch(email)):
            yield PropertyProblem(
                path="serviceAccount.email",
                value=email,
                message="is the project's default account, which may have all permissions; use a separate account",
            )


def _identities(resources: Sequence[Resource], context: Context) -> Iterator[Violation]:
    """The plan must create the identities of instances, so that the other rules check their permissions."""
    made = PlanIndex(resource for resource in resources if resource.type in (ACCOUNT, PROFILE))
    for resource in resources:
        if is_excepted(resource, context):
            continue  # an exception names the resource
        for key, path, value in _acts_as(resource):
            if not made.has(value, resource.depends.get(key, ())):
                wrong = "must be created by this plan, because the rules do not check the permissions of others"
                yield PropertyProblem(path=path, value=value, message=wrong).on(resource)


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
    given = [(path, one) for path, one in named if one not in (None, "")]
    # the state has all identifiers of a reference although the program set one; a value that the provider leaves
    # unknown was not set
    known_ones = [(path, one) for path, one in given if one is not UNKNOWN]
    unknown_ones = given[:1] if key in resource.depends or is_map(value) else []
    for path, one in known_ones[:1] or unknown_ones:
        yield key, path, one


def _disks(resource: Resource, _: Context) -> Iterator[PropertyProblem]:
    kind = resource.type
    if kind == LAUNCH_TEMPLATE:
        yield from _mapped_disks(resource.at("blockDeviceMappings"))
    elif kind in RUNS_INSTANCES:
        yield from _must_be_true(resource, "rootBlockDevice", "encrypted")
        disks = resource.at("ebsBlockDevices")
        if disks is UNKNOWN:
            yield PropertyProblem(path="ebsBlockDevices", value=disks, message="must be known")
        for index in range(len(disks) if is_list(disks) else 0):
            yield from _must_be_true(resource, "ebsBlockDevices", index, "encrypted")
    elif kind == "aws:ebs/volume:Volume" or kind in _COPIES_OF_DISKS:
        yield from _must_be_true(resource, "encrypted")
    elif kind == "aws:ebs/encryptionByDefault:EncryptionByDefault" and resource.at("enabled") is not None:
        yield from _must_be_true(resource, "enabled")


def _mapped_disks(mappings: Any) -> Iterator[PropertyProblem]:
    path = "blockDeviceMappings"
    if not is_list(mappings) or not mappings:
        yield PropertyProblem(
            path=path,
            value=mappings,
            message="must list the root disk; otherwise the image decides whether it is encrypted",
        )
        return
    for index, mapping in enumerate(mappings):
        disk = mapping.get("ebs") if is_map(mapping) else UNKNOWN
        if not is_map(disk):
            yield PropertyProblem(
                path=f"{path}[{index}].ebs", value=disk, message="must be set; otherwise the image decides"
            )
        elif not is_true(value := disk.get("encrypted")):
            yield PropertyProblem(path=f"{path}[{index}].ebs.encrypted", value=value, message="must be true")
    names = [mapping.get("deviceName") for mapping in mappings if is_map(mapping)]
    # AWS accepts no mapping without a device name
    if any(known(name) for name in names) and not any(name in _ROOT_DEVICES for name in names):
        yield PropertyProblem(
            path=path,
            value=names,
            message=f"does not contain the root disk ({' or '.join(_ROOT_DEVICES)}), so the image decides",
        )


def _must_be_true(resource: Resource, *path: str | int) -> Iterator[PropertyProblem]:
    if not is_true(value := resource.at(*path)):
        name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
        yield PropertyProblem(path=name, value=value, message="must be true")


RULES: Final = (
    Rule(
        id="metadata-protected",
        reason="A request that is forged through the engine must not read credentials or boot another system.",
        remedy="Require IMDSv2 tokens and a hop limit of 1 on AWS (2 outside pools); a Shielded VM on Google Cloud.",
        check_resource=_metadata,
        judges="metadataOptions (AWS) and shieldedInstanceConfig (Google Cloud) of templates and instances",
    ),
    Rule(
        id="instance-access-managed",
        reason="A shared key or account does not show who used it, and stays valid after people leave.",
        remedy="Connect through SSM, or through IAP with OS Login. Give each kind of machine its own account.",
        check_resource=_access,
        check_plan=_identities,
        judges=(
            "keyName, sourceDestCheck and iamInstanceProfile (AWS); metadata, serviceAccount and canIpForward of "
            "templates, instances, groups and the project (Google Cloud)"
        ),
    ),
    Rule(
        id="disks-encrypted",
        reason="Disks outlive their instances.",
        remedy="Set encrypted to true, also for the root disk.",
        check_resource=_disks,
        judges="disks of templates and instances, volumes, snapshot copies (AWS); Google Cloud encrypts all disks",
    ),
)
