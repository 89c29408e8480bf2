"""Google Cloud's types in the local provider: what a preview refuses, and where the allowed values come from."""

from __future__ import annotations

import copy
from typing import Any

import httpx
import pytest
from localcloud.callers import VARIABLE
from localcloud.provider.checks import check
from localcloud.provider.gcp.package import PACKAGE
from localcloud.provider.gcp.rest_resource import RestResource
from localcloud.provider.gcp.session import RestClient, read_settings, relative
from localcloud.provider.gcp.shapes import RestShape
from localcloud.provider.schema import Property, Schema, read_wheel
from localcloud.provider.session import Cloud, NotLocalError, Session, Settings
from localcloud.provider.wire import UNKNOWN

TYPES = sorted(PACKAGE.resources)
TEMPLATE = "gcp:compute/instanceTemplate:InstanceTemplate"
GROUP = "gcp:compute/instanceGroupManager:InstanceGroupManager"
REGIONAL = "gcp:compute/regionInstanceGroupManager:RegionInstanceGroupManager"
FIREWALL = "gcp:compute/firewall:Firewall"
NETWORK = "gcp:compute/network:Network"
SUBNET = "gcp:compute/subnetwork:Subnetwork"
NAT = "gcp:compute/routerNat:RouterNat"
HEALTH = "gcp:compute/healthCheck:HealthCheck"
RESERVATION = "gcp:compute/reservation:Reservation"
DISK = "gcp:compute/disk:Disk"
INSTANCE = "gcp:compute/instance:Instance"
FORWARDING = "gcp:compute/forwardingRule:ForwardingRule"
BUCKET = "gcp:storage/bucket:Bucket"
OBJECT = "gcp:storage/bucketObject:BucketObject"
ON_BUCKET = "gcp:storage/bucketIAMMember:BucketIAMMember"
ACCOUNT = "gcp:serviceaccount/account:Account"
ROLE = "gcp:projects/iAMCustomRole:IAMCustomRole"
ZONE = "gcp:dns/managedZone:ManagedZone"
RECORD = "gcp:dns/recordSet:RecordSet"

BOOT = {"boot": True, "sourceImage": "projects/debian-cloud/global/images/family/debian-12"}
FIT: dict[str, dict[str, Any]] = {
    TEMPLATE: {"machineType": "g2-standard-8", "disks": [BOOT]},
    GROUP: {"baseInstanceName": "chat", "versions": [{"instanceTemplate": "t"}], "zone": "us-central1-a"},
    REGIONAL: {"baseInstanceName": "chat", "versions": [{"instanceTemplate": "t"}], "region": "us-central1"},
    FIREWALL: {"network": "n", "allows": [{"protocol": "tcp", "ports": ["80"]}], "sourceRanges": ["10.0.0.0/8"]},
    NETWORK: {},
    SUBNET: {"network": "n", "ipCidrRange": "10.0.0.0/16"},
    NAT: {"router": "r", "sourceSubnetworkIpRangesToNat": "ALL_SUBNETWORKS_ALL_IP_RANGES",
          "natIpAllocateOption": "AUTO_ONLY"},
    HEALTH: {"httpHealthCheck": {"port": 80}},
    RESERVATION: {"zone": "us-central1-a",
                  "specificReservation": {"count": 1, "instanceProperties": {"machineType": "g2-standard-8"}}},
    DISK: {"zone": "us-central1-a", "size": 10},
    INSTANCE: {"machineType": "e2-medium", "bootDisk": {"initializeParams": {"image": "debian"}},
               "networkInterfaces": [{"subnetwork": "s"}]},
    FORWARDING: {"backendService": "b", "loadBalancingScheme": "INTERNAL", "ports": ["80"]},
    BUCKET: {"location": "US", "name": "models"},
    OBJECT: {"bucket": "b", "content": "x"},
    ON_BUCKET: {"bucket": "b", "role": "roles/storage.objectViewer", "member": "user:a@example.com"},
    ACCOUNT: {"accountId": "gpu-fleet-dev-gpu"},
    ROLE: {"title": "t", "permissions": ["compute.instances.list"], "roleId": "control"},
    ZONE: {"dnsName": "fleet.internal.", "name": "inside"},
    RECORD: {"managedZone": "inside", "name": "a.fleet.internal.", "type": "A", "ttl": 30, "rrdatas": ["10.0.0.1"]},
}  # fmt: skip
FLEX = {"provisioningModel": "FLEX_START", "maxRunDuration": {"seconds": 86400}, "automaticRestart": False,
        "instanceTerminationAction": "DELETE"}  # fmt: skip
A_NAME = "is not a Compute Engine name"


@pytest.fixture(scope="module")
def schema() -> Schema:
    return read_wheel(PACKAGE.resources)


def case(name: str, token: str, change: dict[str, Any], path: str, reason: str) -> Any:
    return pytest.param(token, change, path, reason, id=name)


REFUSALS = [
    case("unknown-property", GROUP, {"targetSise": 3}, "targetSise",
         "unexpected property 'targetSise'; did you mean 'targetSize'?"),
    case("unknown-nested-property", TEMPLATE, {"scheduling": {"provisioningMode": "SPOT"}},
         "scheduling.provisioningMode", "did you mean 'provisioningModel'?"),
    case("unknown-property-in-list", TEMPLATE, {"disks": [BOOT | {"sizeGb": 10}]}, "disks[0].sizeGb",
         "unexpected property 'sizeGb'"),
    case("wrong-type", GROUP, {"targetSize": "2"}, "targetSize", "expected a whole number, got string "),
    case("wrong-type-in-map", TEMPLATE, {"labels": {"team": 1}}, "labels.team", "expected a string, got number 1"),
    case("boolean-for-integer", DISK, {"size": True}, "size", "expected a whole number, got boolean True"),
    case("list-for-object", GROUP, {"autoHealingPolicies": [{"healthCheck": "h", "initialDelaySec": 1}]},
         "autoHealingPolicies", "expected an object, got list"),
    case("missing-required", GROUP, {"baseInstanceName": None}, "baseInstanceName",
         "missing required property 'baseInstanceName'"),
    case("missing-required-nested", GROUP, {"autoHealingPolicies": {"healthCheck": "h"}},
         "autoHealingPolicies.initialDelaySec", "missing required property 'initialDelaySec'"),
    case("not-modelled", GROUP, {"statefulDisks": [{"deviceName": "d"}]}, "statefulDisks",
         "not modelled by the local provider"),
    case("beta-field", GROUP, {"updatePolicy": {"type": "PROACTIVE", "minimalAction": "REPLACE", "minReadySec": 5}},
         "updatePolicy.minReadySec", "known to the beta API alone"),
    case("name-with-capitals", NETWORK, {"name": "Prod"}, "name", A_NAME),
    case("name-with-dot", TEMPLATE, {"name": "a.b"}, "name", A_NAME),
    case("name-too-long", FIREWALL, {"name": "a" * 64}, "name", A_NAME),
    case("name-ends-with-hyphen", HEALTH, {"name": "a-"}, "name", A_NAME),
    case("base-name-too-long", GROUP, {"baseInstanceName": "a" * 59}, "baseInstanceName",
         "is not a base of instance names (1 to 58"),
    case("label-key-of-aws", TEMPLATE, {"labels": {"gpu-fleet:pool": "chat"}}, "labels.gpu-fleet:pool",
         "'gpu-fleet:pool' is not a label key"),
    case("label-value-with-capitals", TEMPLATE, {"labels": {"owner": "Search"}}, "labels.owner",
         "'Search' is not a label value"),
    case("enum-provisioning-model", TEMPLATE, {"scheduling": {"provisioningModel": "spot"}},
         "scheduling.provisioningModel", "expected one of FLEX_START, RESERVATION_BOUND, SPOT, STANDARD, got 'spot'"),
    case("enum-termination", TEMPLATE, {"scheduling": {"provisioningModel": "SPOT",
         "instanceTerminationAction": "HIBERNATE"}}, "scheduling.instanceTerminationAction",
         "expected one of DELETE, STOP, got 'HIBERNATE'"),
    case("enum-update-type", GROUP, {"updatePolicy": {"type": "ROLLING", "minimalAction": "REPLACE"}},
         "updatePolicy.type", "expected one of OPPORTUNISTIC, PROACTIVE, got 'ROLLING'"),
    case("enum-on-failure", GROUP, {"instanceLifecyclePolicy": {"defaultActionOnFailure": "RESTART"}},
         "instanceLifecyclePolicy.defaultActionOnFailure", "expected one of DO_NOTHING, REPAIR, got 'RESTART'"),
    case("enum-target-shape", REGIONAL, {"distributionPolicyTargetShape": "BEST"}, "distributionPolicyTargetShape",
         "expected one of ANY, ANY_SINGLE_ZONE, BALANCED, EVEN, got 'BEST'"),
    case("enum-affinity", TEMPLATE, {"reservationAffinity": {"type": "SPECIFIC"}}, "reservationAffinity.type",
         "expected one of ANY_RESERVATION, NO_RESERVATION, SPECIFIC_RESERVATION, got 'SPECIFIC'"),
    case("enum-disk-interface", TEMPLATE, {"disks": [BOOT, {"type": "SCRATCH", "interface": "SATA"}]},
         "disks[1].interface", "expected one of NVME, SCSI, got 'SATA'"),
    case("enum-record-type", RECORD, {"type": "ALIAS"}, "type", "got 'ALIAS'"),
    case("termination-of-standard", TEMPLATE, {"scheduling": {"instanceTerminationAction": "DELETE"}},
         "scheduling.instanceTerminationAction", "STANDARD knows no instanceTerminationAction; leave it out"),
    case("spot-that-restarts", TEMPLATE, {"scheduling": {"provisioningModel": "SPOT", "automaticRestart": True}},
         "scheduling.automaticRestart", "automaticRestart must be false for the provisioning model SPOT"),
    case("spot-not-preemptible", TEMPLATE, {"scheduling": {"provisioningModel": "SPOT", "preemptible": False}},
         "scheduling.preemptible", "preemptible must be true for the provisioning model SPOT"),
    case("notice-of-what-is-not-preempted", TEMPLATE, {"scheduling": {"preemptionNoticeDuration": {"seconds": 120}}},
         "scheduling.preemptionNoticeDuration", "STANDARD has no preemption notice; leave it out"),
    case("flex-start-without-limit", TEMPLATE, {"scheduling": FLEX | {"maxRunDuration": None},
         "reservationAffinity": {"type": "NO_RESERVATION"}}, "scheduling.maxRunDuration",
         "'maxRunDuration' is required for the provisioning model FLEX_START"),
    case("flex-start-that-stops", TEMPLATE, {"scheduling": FLEX | {"instanceTerminationAction": "STOP"},
         "reservationAffinity": {"type": "NO_RESERVATION"}}, "scheduling.instanceTerminationAction",
         "instanceTerminationAction must be DELETE for the provisioning model FLEX_START"),
    case("flex-start-that-restarts", TEMPLATE, {"scheduling": FLEX | {"automaticRestart": True}},
         "scheduling.automaticRestart", "automaticRestart must be false for the provisioning model FLEX_START"),
    case("flex-start-and-preemptible", TEMPLATE, {"scheduling": FLEX | {"preemptible": True}},
         "scheduling.preemptible", "preemptible must be false for the provisioning model FLEX_START"),
    case("flex-start-in-a-reservation", TEMPLATE, {"scheduling": FLEX, "reservationAffinity":
         {"type": "SPECIFIC_RESERVATION", "specificReservation": {"key": "k", "values": ["r"]}}},
         "reservationAffinity.type", "must be NO_RESERVATION for the provisioning model FLEX_START"),
    case("affinity-without-name", TEMPLATE, {"reservationAffinity": {"type": "SPECIFIC_RESERVATION"}},
         "reservationAffinity.specificReservation", "is required for the type SPECIFIC_RESERVATION"),
    case("affinity-with-name-too-many", TEMPLATE, {"reservationAffinity": {"type": "NO_RESERVATION",
         "specificReservation": {"key": "k", "values": ["r"]}}}, "reservationAffinity.specificReservation",
         "needs the type SPECIFIC_RESERVATION"),
    case("scratch-size", TEMPLATE, {"disks": [BOOT, {"type": "SCRATCH", "diskSizeGb": 400}]},
         "disks[1].diskSizeGb", "SCRATCH disks must be one of [375, 3000] GB, got 400"),
    case("scratch-type", TEMPLATE, {"disks": [BOOT, {"type": "SCRATCH", "diskType": "pd-ssd"}]},
         "disks[1].diskType", "SCRATCH disks must have the disk type local-ssd"),
    case("disk-from-nothing", TEMPLATE, {"disks": [{"boot": True}]}, "disks[0].sourceImage",
         "one of 'source', 'sourceImage', 'sourceSnapshot' is required unless type is SCRATCH"),
    case("no-disks", TEMPLATE, {"disks": []}, "disks", "at least one disk is required"),
    case("two-scripts", TEMPLATE, {"metadata": {"startup-script": "a"}, "metadataStartupScript": "b"},
         "metadataStartupScript", "cannot provide both metadataStartupScript and metadata.startup-script"),
    case("conflict-name-and-prefix", TEMPLATE, {"name": "abc", "namePrefix": "a"}, "namePrefix",
         "'namePrefix' conflicts with 'name'; give one of them"),
    case("conflict-surge", GROUP, {"updatePolicy": {"type": "PROACTIVE", "minimalAction": "REPLACE",
         "maxSurgeFixed": 1, "maxSurgePercent": 10}}, "updatePolicy.maxSurgePercent",
         "'maxSurgePercent' conflicts with 'maxSurgeFixed'"),
    case("update-without-headroom", GROUP, {"updatePolicy": {"type": "PROACTIVE", "minimalAction": "REPLACE",
         "maxSurgeFixed": 0, "maxUnavailableFixed": 0}}, "updatePolicy.maxUnavailableFixed", "cannot both be 0"),
    case("two-open-versions", GROUP, {"versions": [{"instanceTemplate": "a"}, {"instanceTemplate": "b"}]},
         "versions", "exactly one version has no 'targetSize', got 2"),
    case("size-below-zero", GROUP, {"targetSize": -1}, "targetSize", "expected a number from 0 to 4000, got -1"),
    case("delay-too-long", GROUP, {"autoHealingPolicies": {"healthCheck": "h", "initialDelaySec": 3601}},
         "autoHealingPolicies.initialDelaySec", "expected a number from 0 to 3600, got 3601"),
    case("fewer-than-zones", REGIONAL, {"distributionPolicyZones": ["a", "b", "c"], "updatePolicy":
         {"type": "OPPORTUNISTIC", "minimalAction": "REPLACE", "maxUnavailableFixed": 1}},
         "updatePolicy.maxUnavailableFixed", "must be 0 or at least the number of zones, 3, got 1"),
    case("flexible-and-even", REGIONAL, {"instanceFlexibilityPolicy": {"instanceSelections": []}},
         "distributionPolicyTargetShape", "needs the target shape ANY, ANY_SINGLE_ZONE or BALANCED, got EVEN"),
    case("neither-allows-nor-denies", FIREWALL, {"allows": None}, "allows", "one of 'allows', 'denies' is required"),
    case("allows-and-denies", FIREWALL, {"denies": [{"protocol": "all"}]}, "denies", "'denies' conflicts with"),
    case("ingress-from-nowhere", FIREWALL, {"sourceRanges": None}, "sourceRanges", "is required for INGRESS"),
    case("tags-and-accounts", FIREWALL, {"targetTags": ["a"], "sourceServiceAccounts": ["b"]}, "targetTags",
         "'targetTags' conflicts with 'sourceServiceAccounts'"),
    case("host-bits", SUBNET, {"ipCidrRange": "10.0.0.1/16"}, "ipCidrRange", "is not a network such as"),
    case("nat-addresses-missing", NAT, {"natIpAllocateOption": "MANUAL_ONLY"}, "natIps", "'natIps' is required"),
    case("two-health-checks", HEALTH, {"tcpHealthCheck": {"port": 1}}, "tcpHealthCheck", "only one of"),
    case("timeout-above-interval", HEALTH, {"timeoutSec": 9}, "timeoutSec", "9 is more than checkIntervalSec, 5"),
    case("reservation-ends-twice", RESERVATION, {"deleteAtTime": "2027-01-01T00:00:00Z",
         "deleteAfterDuration": {"seconds": "10"}}, "deleteAfterDuration", "conflicts with 'deleteAtTime'"),
    case("reservation-of-nothing", RESERVATION, {"specificReservation": {"count": 0}}, "specificReservation.count",
         "expected a number from 1 to 10000, got 0"),
    case("reservation-end-no-time", RESERVATION, {"deleteAtTime": "2027-01-01"}, "deleteAtTime", "is not a time"),
    case("machine-without-network", INSTANCE, {"networkInterfaces": [{}]}, "networkInterfaces[0]",
         "one of 'network', 'subnetwork' is required"),
    case("machine-without-disk", INSTANCE, {"bootDisk": {}}, "bootDisk", "exactly one of"),
    case("too-many-ports", FORWARDING, {"ports": ["1", "2", "3", "4", "5", "6"]}, "ports", "at most 5 ports"),
    case("ports-twice", FORWARDING, {"allPorts": True}, "allPorts", "'allPorts' conflicts with 'ports'"),
    case("bucket-name", BUCKET, {"name": "Models"}, "name", "is not a bucket name"),
    case("bucket-name-of-google", BUCKET, {"name": "my-google-models"}, "name", "may not begin with goog"),
    case("object-of-nothing", OBJECT, {"content": None}, "content", "one of 'content', 'source' is required"),
    case("member-without-kind", ON_BUCKET, {"member": "a@example.com"}, "member", "is not a member such as"),
    case("role-without-prefix", ON_BUCKET, {"role": "storage.admin"}, "role", "is not a role such as"),
    case("condition-on-basic-role", ON_BUCKET, {"role": "roles/owner", "condition": {"title": "t",
         "expression": "true"}}, "condition", "takes no condition"),
    case("account-id-short", ACCOUNT, {"accountId": "gpu"}, "accountId", "is not an account id (6 to 30"),
    case("role-id-with-hyphen", ROLE, {"roleId": "gpu-fleet"}, "roleId", "is not a role id"),
    case("permission-with-star", ROLE, {"permissions": ["compute.*"]}, "permissions[0]", "is not a permission"),
    case("domain-without-dot", ZONE, {"dnsName": "fleet.internal"}, "dnsName", "ends with a dot"),
    case("private-config-of-public", ZONE, {"privateVisibilityConfig": {"networks": []}},
         "privateVisibilityConfig", "needs visibility private"),
]  # fmt: skip


def changed(token: str, change: dict[str, Any]) -> dict[str, Any]:
    return _without_none(copy.deepcopy(FIT[token]) | change)


def _without_none(inputs: dict[str, Any]) -> dict[str, Any]:
    plain = {k: _without_none(v) if isinstance(v, dict) else v for k, v in inputs.items()}
    return {k: v for k, v in plain.items() if v is not None}


@pytest.mark.parametrize(("token", "change", "path", "reason"), REFUSALS)
def test_invalid_input_is_refused_in_preview(
    schema: Schema, token: str, change: dict[str, Any], path: str, reason: str
) -> None:
    failures = check(PACKAGE.resources[token], schema, changed(token, change))
    assert [f.path for f in failures] == [path]
    assert reason in failures[0].reason


@pytest.mark.parametrize("token", sorted(FIT))
def test_valid_inputs_pass(schema: Schema, token: str) -> None:
    assert check(PACKAGE.resources[token], schema, FIT[token]) == []


@pytest.mark.parametrize(
    ("token", "change"),
    [
        pytest.param(NETWORK, {"name": UNKNOWN}, id="name"),
        pytest.param(TEMPLATE, {"labels": {"pool": UNKNOWN}, "metadataStartupScript": UNKNOWN}, id="label"),
        pytest.param(TEMPLATE, {"reservationAffinity": {"type": "SPECIFIC_RESERVATION", "specificReservation":
                     {"key": "k", "values": [UNKNOWN]}}}, id="reservation"),
        pytest.param(GROUP, {"versions": [{"instanceTemplate": UNKNOWN}]}, id="template"),
        pytest.param(ON_BUCKET, {"member": UNKNOWN}, id="member"),
    ],
)  # fmt: skip
def test_unknown_values_are_not_refused_in_preview(schema: Schema, token: str, change: dict[str, Any]) -> None:
    assert check(PACKAGE.resources[token], schema, changed(token, change)) == []


# Comparison with the installed package and with Google's discovery document.


@pytest.mark.parametrize("token", TYPES)
def test_modelled_inputs_exist_and_required_ones_are_modelled(schema: Schema, token: str) -> None:
    resource, inputs = PACKAGE.resources[token], schema.resources[token].inputs
    assert resource.modelled <= inputs.keys()
    assert {n for n, p in inputs.items() if p.required} <= resource.modelled
    assert resource.force_new & resource.mutable == set()
    assert resource.volatile <= schema.resources[token].outputs
    if isinstance(resource, RestResource):
        assert resource.computed.keys() <= schema.resources[token].outputs


@pytest.mark.parametrize("token", TYPES)
def test_enumerations_name_existing_properties(schema: Schema, token: str) -> None:
    for path in PACKAGE.resources[token].enums:
        assert _exists(schema, schema.resources[token].inputs, path), path


def _exists(schema: Schema, properties: Any, path: str) -> bool:
    head, _, tail = path.replace("[*]", "").partition(".")
    prop: Property | None = properties.get(head)
    if prop is None:
        return False
    shape = prop.shape
    while shape.kind == "list" and shape.item is not None:
        shape = shape.item
    return not tail or _exists(schema, schema.objects[shape.object or ""], tail)


@pytest.mark.parametrize(
    ("token", "path", "place"),
    [
        (TEMPLATE, "scheduling.provisioningModel", ("properties", "scheduling", "provisioningModel")),
        (TEMPLATE, "scheduling.instanceTerminationAction", ("properties", "scheduling", "instanceTerminationAction")),
        (TEMPLATE, "scheduling.onHostMaintenance", ("properties", "scheduling", "onHostMaintenance")),
        (TEMPLATE, "disks[*].interface", ("properties", "disks", "interface")),
        (TEMPLATE, "disks[*].type", ("properties", "disks", "type")),
        (GROUP, "updatePolicy.type", ("updatePolicy", "type")),
        (GROUP, "instanceLifecyclePolicy.defaultActionOnFailure",
         ("instanceLifecyclePolicy", "defaultActionOnFailure")),
        (REGIONAL, "distributionPolicyTargetShape", ("distributionPolicy", "targetShape")),
        (FIREWALL, "direction", ("direction",)),
        (SUBNET, "stackType", ("stackType",)),
        (HEALTH, "httpHealthCheck.portSpecification", ("httpHealthCheck", "portSpecification")),
    ],
    ids=lambda value: value if isinstance(value, str) and "." in value else "",
)  # fmt: skip
def test_enumerations_match_googles_discovery_document(token: str, path: str, place: tuple[str, ...]) -> None:
    resource = PACKAGE.resources[token]
    assert isinstance(resource, RestResource)
    shape: RestShape = resource.shape
    for name in place:
        shape = shape.members[name]
        while shape.type_name == "list":
            shape = shape.member
    assert resource.enums[path] <= shape.choices
    assert {c for c in shape.choices - resource.enums[path] if "UNSPECIFIED" not in c} <= LEFT_OUT.get(path, set())


LEFT_OUT: dict[str, set[str]] = {}


# Allowed endpoints.

LOCAL = dict.fromkeys(
    ("GPUFLEET_COMPUTE_ENDPOINT", "STORAGE_EMULATOR_HOST", "GPUFLEET_SECRETMANAGER_ENDPOINT"),
    "http://127.16.0.4:4567",
) | {VARIABLE: "t"}
PROJECT = {"project": "p", "region": "us-central1"}


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        pytest.param(PROJECT, {}, "GPUFLEET_COMPUTE_ENDPOINT is not set", id="no-endpoint"),
        pytest.param(PROJECT, LOCAL | {"STORAGE_EMULATOR_HOST": "https://storage.googleapis.com"},
                     "STORAGE_EMULATOR_HOST: .* is not a loopback address", id="storage-elsewhere"),
        pytest.param(PROJECT, LOCAL | {"GPUFLEET_COMPUTE_ENDPOINT": "http://10.0.0.1:1"},
                     "is not a loopback address", id="compute-elsewhere"),
        pytest.param(PROJECT | {"credentials": "key.json"}, LOCAL, "'credentials' is not modelled", id="credentials"),
        pytest.param(PROJECT | {"impersonateServiceAccount": "a@b"}, LOCAL, "'impersonateServiceAccount'", id="as"),
        pytest.param({"region": "us-central1"}, LOCAL, "gcp:project is not set", id="no-project"),
        pytest.param({"project": "p"}, LOCAL, "gcp:region is not set", id="no-region"),
        pytest.param(PROJECT, LOCAL | {VARIABLE: ""}, f"{VARIABLE} is not set.*local env", id="no-token"),
    ],
)  # fmt: skip
def test_invalid_settings_are_refused(arguments: dict[str, Any], environment: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        read_settings(arguments, environment)
    if "loopback" in message or "ENDPOINT is not set" in message:
        assert isinstance(refused.value, NotLocalError)


@pytest.mark.parametrize(
    ("link", "short"),
    [
        ("https://www.googleapis.com/compute/v1/projects/p/global/networks/n", "projects/p/global/networks/n"),
        ("http://127.16.0.4:4567/compute/v1/projects/p/zones/z", "projects/p/zones/z"),
        ("projects/p/zones/z", "projects/p/zones/z"),
        ("g2-standard-8", "g2-standard-8"),
    ],
)
def test_links_are_compared_without_host_and_version(link: str, short: str) -> None:
    assert relative(link) == short


class Paged(Session):
    """A bucket with more objects than one page. It can be deleted only when it is empty."""

    def __init__(self, objects: int, page: int) -> None:
        super().__init__(Settings(endpoint="http://127.0.0.1", token="t", region="us-central1", project="p"))
        self.names = [f"o{n}" for n in range(objects)]
        self.page = page
        self.deleted = False

    def make_client(self, service: str, region: str) -> RestClient:
        return RestClient("http://127.0.0.1/storage/v1/", httpx.Client(transport=httpx.MockTransport(self._answer)))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/storage/v1/b/models")
        if request.method == "GET" and path == "/o":
            return httpx.Response(
                200, json={"items": [{"name": n, "generation": 1} for n in self.names[: self.page]]}
            )
        if request.method == "DELETE" and path:
            self.names.remove(path.removeprefix("/o/"))
        elif request.method == "DELETE" and self.names:
            return httpx.Response(409, json={"error": {"message": "The bucket you tried to delete is not empty."}})
        elif request.method == "DELETE":
            self.deleted = True
        return httpx.Response(200, json={})


def test_bucket_is_emptied_completely_before_its_deletion() -> None:
    session = Paged(objects=7, page=3)
    cloud = Cloud(session=session, region="us-central1", limit_s=1)
    PACKAGE.resources[BUCKET].delete(cloud, "models", {"forceDestroy": True})
    assert (session.names, session.deleted) == ([], True)
