"""Declares every Google type that the local provider models. With `second` it changes every mutable property."""

import json

import pulumi
import pulumi_gcp as gcp

config = pulumi.Config()
second = config.get_bool("second") or False
network_name = config.require("network")
PROJECT = "gpu-fleet-local"
REGION, ZONE = "us-central1", "us-central1-a"
TEAM = {"team": "two" if second else "one"}
IMAGE = "projects/debian-cloud/global/images/debian-12-bookworm-v20261101"

# network
net = gcp.compute.Network("net", auto_create_subnetworks=False, routing_mode="GLOBAL" if second else "REGIONAL")
subnet = gcp.compute.Subnetwork(
    "net",
    network=net.id,
    region=REGION,
    ip_cidr_range=f"{network_name}.64.0/18",
    private_ip_google_access=not second,
)
router = gcp.compute.Router("net", network=net.id, region=REGION, description=TEAM["team"])
gcp.compute.RouterNat(
    "net",
    router=router.name,
    region=REGION,
    nat_ip_allocate_option="AUTO_ONLY",
    source_subnetwork_ip_ranges_to_nat="ALL_SUBNETWORKS_ALL_IP_RANGES",
    min_ports_per_vm=128 if second else 64,
)

# identities
account = gcp.serviceaccount.Account("machine", account_id="everything-machine", display_name=TEAM["team"])
member = account.email.apply(lambda email: f"serviceAccount:{email}")
role = gcp.projects.IAMCustomRole(
    "stop",
    role_id="everything_stop",
    title=TEAM["team"],
    permissions=["compute.instances.get", "compute.instances.stop"] if second else ["compute.instances.stop"],
)
gcp.projects.IAMMember("stop", project=PROJECT, role=role.name, member=member)
gcp.secretmanager.SecretIamMember(
    "token",
    secret_id=config.require("secret"),
    project=PROJECT,
    role="roles/secretmanager.secretAccessor",
    member=member,
)
gcp.compute.Firewall(
    "inside",
    network=net.id,
    direction="INGRESS",
    allows=[{"protocol": "tcp", "ports": ["8000", "8001"] if second else ["8000"]}],
    source_service_accounts=[account.email],
    target_service_accounts=[account.email],
)

# bucket
bucket = gcp.storage.Bucket(
    "models",
    location="US-CENTRAL1",
    uniform_bucket_level_access=True,
    public_access_prevention="enforced",
    versioning={"enabled": second},
    force_destroy=True,
    labels=TEAM,
)
gcp.storage.BucketIAMMember(
    "reader",
    bucket=bucket.name,
    role="roles/storage.objectViewer",
    member=member,
    condition={"title": "own objects", "expression": 'resource.name.startsWith("projects/_/buckets/b/objects/a/")'},
)
document = gcp.storage.BucketObject(
    "document",
    bucket=bucket.name,
    name="fleet/fleet.json",
    content=json.dumps(TEAM),
    content_type="application/json",
)
gcp.storage.BucketObject("file", bucket=bucket.name, name="program.py", source=pulumi.FileAsset("__main__.py"))

# machines
disk = gcp.compute.Disk("data", zone=ZONE, size=30 if second else 20, type="pd-balanced", labels=TEAM)
machine = gcp.compute.Instance(
    "machine",
    zone=ZONE,
    machine_type="e2-small" if second else "e2-medium",
    boot_disk={"initialize_params": {"image": IMAGE, "type": "pd-balanced", "size": 20}},
    attached_disks=[{"source": disk.id, "device_name": "data"}],
    network_interfaces=[{"subnetwork": subnet.id}],
    metadata={"enable-oslogin": "TRUE", **TEAM},
    service_account={"email": account.email, "scopes": ["cloud-platform"]},
    shielded_instance_config={"enable_secure_boot": True, "enable_vtpm": True, "enable_integrity_monitoring": True},
    allow_stopping_for_update=True,
    labels=TEAM,
)

# balancing and names
health = gcp.compute.RegionHealthCheck(
    "router", region=REGION, tcp_health_check={"port": 8081 if second else 8080}, check_interval_sec=10
)
routers = gcp.compute.InstanceGroup("router", zone=ZONE, instances=[machine.self_link])
service = gcp.compute.RegionBackendService(
    "router",
    region=REGION,
    protocol="TCP",
    load_balancing_scheme="INTERNAL",
    health_checks=health.id,
    backends=[{"group": routers.self_link, "balancing_mode": "CONNECTION"}],
    connection_draining_timeout_sec=30 if second else 10,
)
rule = gcp.compute.ForwardingRule(
    "router",
    region=REGION,
    load_balancing_scheme="INTERNAL",
    ip_protocol="TCP",
    ports=["8080"],
    backend_service=service.id,
    network=net.id,
    subnetwork=subnet.id,
    labels=TEAM,
)
zone = gcp.dns.ManagedZone(
    "inside",
    dns_name="fleet.internal.",
    visibility="private",
    description=TEAM["team"],
    private_visibility_config={"networks": [{"network_url": net.id}]},
    labels=TEAM,
)
gcp.dns.RecordSet(
    "control",
    managed_zone=zone.name,
    name="control.fleet.internal.",
    type="A",
    ttl=60 if second else 30,
    rrdatas=[machine.network_interfaces[0].network_ip],
)
gcp.dns.RecordSet(
    "router", managed_zone=zone.name, name="router.fleet.internal.", type="A", ttl=30, rrdatas=[rule.ip_address]
)

# capacity
reservation = gcp.compute.Reservation(
    "reserved",
    zone=ZONE,
    specific_reservation={"count": 2 if second else 1, "instance_properties": {"machine_type": "g2-standard-8"}},
    specific_reservation_required=True,
    delete_at_time="2030-03-01T00:00:00Z",
)
alive = gcp.compute.HealthCheck(
    "pool", http_health_check={"port": 9500, "request_path": "/healthz"}, timeout_sec=4 if second else 5
)
template = gcp.compute.InstanceTemplate(
    "pool",
    machine_type="g2-standard-8",
    region=REGION,
    labels={"gpu-fleet-pool": "pool"},
    metadata={"enable-oslogin": "TRUE"},
    metadata_startup_script="#!/bin/sh\n",
    disks=[
        {
            "boot": True,
            "auto_delete": True,
            "source_image": IMAGE,
            "disk_type": "pd-ssd",
            "disk_size_gb": 120 if second else 100,
        },
        {"type": "SCRATCH", "disk_type": "local-ssd", "interface": "NVME", "disk_size_gb": 375, "auto_delete": True},
    ],
    network_interfaces=[{"subnetwork": subnet.id}],
    service_account={"email": account.email, "scopes": ["cloud-platform"]},
    shielded_instance_config={"enable_secure_boot": True, "enable_vtpm": True, "enable_integrity_monitoring": True},
    scheduling={
        "provisioning_model": "SPOT",
        "preemptible": True,
        "automatic_restart": False,
        "on_host_maintenance": "TERMINATE",
        "instance_termination_action": "DELETE",
    },
    reservation_affinity={"type": "NO_RESERVATION"},
)
zonal = gcp.compute.InstanceGroupManager(
    "zonal",
    base_instance_name="zonal",
    zone=ZONE,
    versions=[{"instance_template": template.self_link}],
    target_size=1 if second else 0,
    update_policy={
        "type": "OPPORTUNISTIC",
        "minimal_action": "REPLACE",
        "max_surge_fixed": 0,
        "max_unavailable_fixed": 2 if second else 1,
    },
    auto_healing_policies={"health_check": alive.id, "initial_delay_sec": 1800},
    instance_lifecycle_policy={"default_action_on_failure": "REPAIR", "on_failed_health_check": "DO_NOTHING"},
    wait_for_instances=second,
)
regional = gcp.compute.RegionInstanceGroupManager(
    "regional",
    base_instance_name="regional",
    region=REGION,
    versions=[{"instance_template": template.self_link}],
    distribution_policy_zones=["us-central1-a", "us-central1-b"],
    distribution_policy_target_shape="ANY",
    instance_flexibility_policy={
        "instance_selections": [
            {"name": name, "machine_types": [name], "rank": rank}
            for rank, name in enumerate(["g2-standard-8", "g2-standard-12"][: 2 if second else 1], start=1)
        ]
    },
    target_size=0,
    update_policy={
        "type": "OPPORTUNISTIC",
        "minimal_action": "REPLACE",
        "instance_redistribution_type": "NONE",
        "max_unavailable_fixed": 2,
    },
    auto_healing_policies={"health_check": alive.id, "initial_delay_sec": 1800},
    instance_lifecycle_policy={"default_action_on_failure": "REPAIR", "on_failed_health_check": "DO_NOTHING"},
    wait_for_instances=False,
)

pulumi.export("bucket", bucket.name)
pulumi.export("reservation", reservation.self_link)
pulumi.export("machine", machine.instance_id)
pulumi.export("address", rule.ip_address)
pulumi.export("generation", document.generation)
pulumi.export("labels", machine.effective_labels)
pulumi.export("template", template.self_link)
