"""Real Google clients on the embedded cloud, and what every group of a test needs."""

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from google.api_core.client_options import ClientOptions
from google.cloud import compute_v1

from tests.clouds.conftest import RunningCloud
from tests.local_token import BEARER, google

PROJECT = "gpu-fleet-local"
REGION = "us-central1"
ZONE = "us-central1-a"
LIMIT_S = 60


@dataclass(slots=True, kw_only=True)
class Google:
    """The embedded Google Cloud of a running cloud."""

    cloud: RunningCloud

    def client(self, kind: Any) -> Any:
        options = ClientOptions(api_endpoint=self.cloud.places.google_url)
        return kind(client_options=options, credentials=google())

    def control(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """A call of the control API: status and answer."""
        payload = None if body is None else json.dumps(body).encode()
        url = f"{self.cloud.places.google_url}/_localcloud/{path}"
        request = urllib.request.Request(url, method=method, data=payload, headers=BEARER)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def finish(self, operation: Any) -> Any:
        """Wait for an operation of any scope. Raises AssertionError when it failed.

        `.result()` of the client would ask compute.googleapis.com: it makes the client for that without our endpoint.
        """
        if operation.zone:
            zone = operation.zone.rpartition("/")[2]
            client = self.client(compute_v1.ZoneOperationsClient)
            done = client.wait(project=PROJECT, zone=zone, operation=operation.name)
        elif operation.region:
            client = self.client(compute_v1.RegionOperationsClient)
            done = client.wait(project=PROJECT, region=REGION, operation=operation.name)
        else:
            done = self.client(compute_v1.GlobalOperationsClient).wait(project=PROJECT, operation=operation.name)
        assert done.status == compute_v1.Operation.Status.DONE
        assert not done.error.errors, done.error
        return done

    @property
    def groups(self) -> Any:
        return self.client(compute_v1.InstanceGroupManagersClient)

    @property
    def instances(self) -> Any:
        return self.client(compute_v1.InstancesClient)

    def make_network(self) -> None:
        """`net` with one subnetwork over the region."""
        network = compute_v1.Network(name="net", auto_create_subnetworks=False)
        self.finish(self.client(compute_v1.NetworksClient).insert_unary(project=PROJECT, network_resource=network))
        subnetwork = compute_v1.Subnetwork(
            name="net", network="global/networks/net", ip_cidr_range=self.cloud.places.google_cidr
        )
        subnetworks = self.client(compute_v1.SubnetworksClient)
        self.finish(subnetworks.insert_unary(project=PROJECT, region=REGION, subnetwork_resource=subnetwork))

    def template(self, name: str, script: str = "#!/bin/sh\n", **more: Any) -> dict[str, Any]:
        """The body of a template of spot instances."""
        return {
            "name": name,
            "properties": {
                "machine_type": "g2-standard-8",
                "labels": {
                    "gpu-fleet-pool": name,
                    "gpu-fleet-environment": "test",
                    "gpu-fleet-capacity-type": "spot",
                },
                "metadata": {"items": [{"key": "startup-script", "value": script}]},
                "disks": [
                    {
                        "boot": True,
                        "auto_delete": True,
                        "initialize_params": {"source_image": "projects/debian-cloud/global/images/debian-12"},
                    },
                    {
                        "type_": "SCRATCH",
                        "auto_delete": True,
                        "interface": "NVME",
                        "initialize_params": {"disk_type": "local-ssd"},
                    },
                ],
                "network_interfaces": [{"subnetwork": f"projects/{PROJECT}/regions/{REGION}/subnetworks/net"}],
                "service_accounts": [
                    {"email": f"gpu@{PROJECT}.iam.gserviceaccount.com", "scopes": ["cloud-platform"]}
                ],
                "scheduling": {
                    "provisioning_model": "SPOT",
                    "preemptible": True,
                    "automatic_restart": False,
                    "on_host_maintenance": "TERMINATE",
                    "instance_termination_action": "DELETE",
                },
                **more,
            },
        }

    def make_template(self, name: str, script: str = "#!/bin/sh\n", **more: Any) -> str:
        """Its link."""
        body = compute_v1.InstanceTemplate(self.template(name, script, **more))
        client = self.client(compute_v1.InstanceTemplatesClient)
        self.finish(client.insert_unary(project=PROJECT, instance_template_resource=body))
        return client.get(project=PROJECT, instance_template=name).self_link

    def make_group(self, name: str, template: str, size: int, **more: Any) -> None:
        """A zonal group, as the components declare it."""
        body = compute_v1.InstanceGroupManager(
            {
                "name": name,
                "base_instance_name": name,
                "target_size": size,
                "versions": [{"instance_template": template}],
                "update_policy": {
                    "type_": "OPPORTUNISTIC",
                    "minimal_action": "REPLACE",
                    "max_surge": {"fixed": 0},
                    "max_unavailable": {"fixed": 1},
                },
                **more,
            }
        )
        self.finish(self.groups.insert_unary(project=PROJECT, zone=ZONE, instance_group_manager_resource=body))

    def members(self, group: str) -> list[Any]:
        return list(
            self.groups.list_managed_instances(
                project=PROJECT, zone=ZONE, instance_group_manager=group
            ).managed_instances
        )

    def running(self, group: str) -> list[Any]:
        """Members that run and are left alone."""
        return [m for m in self.members(group) if m.current_action == "NONE" and m.instance_status == "RUNNING"]

    def group(self, name: str) -> Any:
        return self.groups.get(project=PROJECT, zone=ZONE, instance_group_manager=name)

    def instance(self, name: str) -> Any:
        return self.instances.get(project=PROJECT, zone=ZONE, instance=name)
