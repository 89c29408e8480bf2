"""The fleet program with resources that operators often add, for the cloud that the stack's settings name."""

import runpy
from pathlib import Path

import pulumi

import stacks

runpy.run_path(str(Path(stacks.__file__).parent), run_name="__main__")

if pulumi.Config("aws").get("region"):
    from pulumi_aws import ec2, ecr, route53, s3

    ec2.Instance(
        "bastion",
        ami="ami-0123456789abcdef0",
        instance_type="t3.micro",
        subnet_id="subnet-0123456789abcdef0",
        associate_public_ip_address=False,
        metadata_options={"http_endpoint": "enabled", "http_tokens": "required", "http_put_response_hop_limit": 1},
        root_block_device={"encrypted": True},
    )
    s3.Bucket("logs", bucket="example-logs")
    ecr.Repository("images", name="images")
    route53.Record("name", name="x.example.internal", zone_id="Z1", type="A", ttl=60, records=["10.0.0.9"])
    pulumi.StackReference(f"organization/gpu-fleet/{pulumi.get_stack()}")
else:
    from pulumi_gcp import compute, dns, storage

    compute.Instance(
        "bastion",
        zone="us-central1-a",
        machine_type="e2-small",
        boot_disk={"initialize_params": {"image": "debian-cloud/debian-12"}},
        network_interfaces=[{"subnetwork": "projects/p/regions/us-central1/subnetworks/s"}],
        service_account={"email": "bastion@p.iam.gserviceaccount.com", "scopes": ["cloud-platform"]},
        metadata={"enable-oslogin": "TRUE", "block-project-ssh-keys": "TRUE", "serial-port-enable": "FALSE"},
        shielded_instance_config={
            "enable_secure_boot": True,
            "enable_vtpm": True,
            "enable_integrity_monitoring": True,
        },
    )
    storage.Bucket(
        "logs",
        name="example-logs",
        location="us-central1",
        uniform_bucket_level_access=True,
        public_access_prevention="enforced",
        versioning={"enabled": True},
    )
    dns.RecordSet("name", name="x.example.internal.", managed_zone="z", type="A", ttl=60, rrdatas=["10.0.0.9"])
