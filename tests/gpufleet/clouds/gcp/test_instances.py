"""Single instances of the embedded Compute Engine: lifecycle, metadata server, reservations, refusals."""

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import compute_v1

from tests.fixtures.clouds.emulator import start_cloud, stop_cloud, wait_for
from tests.fixtures.clouds.google import PROJECT, ZONE, Google

pytestmark = pytest.mark.slow
_SPOT = {"provisioning_model": "SPOT", "on_host_maintenance": "TERMINATE"}


@pytest.fixture(scope="module")
def google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Google]:
    cloud = start_cloud(tmp_path_factory.mktemp("google"))
    try:
        found = Google(cloud=cloud)
        found.make_network()
        yield found
    finally:
        stop_cloud(cloud)


def _body(google: Google, name: str, **more: Any) -> dict[str, Any]:
    properties = google.template(name, "#!/bin/sh\necho $$ >>$GPUFLEET_ROOT/boots\n")["properties"]
    machine_type = f"zones/{ZONE}/machineTypes/{properties['machine_type']}"
    return {**properties, "name": name, "machine_type": machine_type, **more}


def _insert(google: Google, name: str, **more: Any) -> Any:
    body = compute_v1.Instance(_body(google, name, **more))
    google.finish(google.instances.insert_unary(project=PROJECT, zone=ZONE, instance_resource=body))
    return google.instance(name)


def _get(instance: Any, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, str, Mapping[str, str]]:
    address = instance.network_interfaces[0].network_i_p
    sent = {"Metadata-Flavor": "Google"} if headers is None else dict(headers)
    request = urllib.request.Request(f"http://{address}:1338/computeMetadata/v1/{path}", headers=sent)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode(), dict(answer.headers)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(), {}


def _call(google: Google, verb: str, name: str) -> Any:
    return google.finish(getattr(google.instances, f"{verb}_unary")(project=PROJECT, zone=ZONE, instance=name))


def test_a_stopped_instance_keeps_its_disk_and_starts_again(google: Google) -> None:
    assert _insert(google, "stops").status == "RUNNING"
    boots = google.cloud.machines / "stops" / "boots"
    wait_for("the first boot", boots.is_file)
    with pytest.raises(exceptions.BadRequest, match="undefined value for `discard-local-ssd`"):
        _call(google, "stop", "stops")
    whole = {"project": PROJECT, "zone": ZONE, "instance": "stops", "discard_local_ssd": True}
    google.finish(google.instances.stop_unary(whole))
    assert google.instance("stops").status == "TERMINATED"
    _call(google, "start", "stops")
    wait_for("the second boot", lambda: len(boots.read_text().splitlines()) == 2)
    _call(google, "delete", "stops")
    with pytest.raises(exceptions.NotFound):
        google.instance("stops")
    ended = [row for row in google.control("GET", "billing-log")[1] if row["instance"] == "stops"]
    assert [(row["why"], row["capacity_type"]) for row in ended] == [("stopped", "spot"), ("deleted", "spot")]


def test_the_metadata_server_responds_as_googles_does(google: Google) -> None:
    made = _insert(google, "asks")
    assert _get(made, "instance/name", {})[0] == 403, "without the header"
    status, text, headers = _get(made, "instance/machine-type")
    assert (status, text) == (200, "projects/100000000001/machineTypes/g2-standard-8")
    assert headers["Metadata-Flavor"] == "Google"
    assert _get(made, "instance/zone")[1] == f"projects/100000000001/zones/{ZONE}"
    assert _get(made, "project/project-id")[1] == PROJECT
    assert _get(made, "instance/scheduling/preemptible")[1] == "TRUE"
    assert _get(made, "instance/preempted")[1] == "FALSE"
    assert _get(made, "instance/maintenance-event")[1] == "NONE"
    assert _get(made, "instance/nothing")[0] == 404
    assert "startup-script" in _get(made, "instance/attributes/")[1].splitlines()
    email = f"gpu@{PROJECT}.iam.gserviceaccount.com"
    assert _get(made, "instance/service-accounts/default/email")[1] == email
    whole = json.loads(_get(made, "?recursive=true")[1])
    assert whole["instance"]["networkInterfaces"][0]["ip"] == made.network_interfaces[0].network_i_p
    token = json.loads(_get(made, "instance/service-accounts/default/token")[1])
    assert token["token_type"] == "Bearer"
    assert token["expires_in"] > 3000


def test_a_token_identifies_its_caller(google: Google) -> None:
    made = _insert(google, "calls")
    token = json.loads(_get(made, "instance/service-accounts/default/token")[1])["access_token"]
    request = urllib.request.Request(
        f"{google.cloud.places.google_url}/compute/v1/projects/{PROJECT}/zones/{ZONE}/instances",
        headers={"Authorization": f"Bearer {token}"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 200
    rows = google.control("GET", "calls")[1]
    caller = f"gpu@{PROJECT}.iam.gserviceaccount.com/calls"
    assert [row["operation"] for row in rows if row["principal"] == caller] == ["instances.list"]


def test_waiting_for_a_preemption_returns_when_it_happens(google: Google) -> None:
    made = _insert(google, "waits")
    _, before, headers = _get(made, "instance/preempted")
    assert before == "FALSE"
    received: list[str] = []

    def wait() -> None:
        # the server also returns, with the old value, when the ETag is older than the metadata: clients ask again
        etag = headers["ETag"]
        for _ in range(20):
            _, value, answered = _get(
                made, f"instance/preempted?wait_for_change=true&timeout_sec=30&last_etag={etag}"
            )
            received.append(value)
            if value == "TRUE":
                return
            etag = answered["ETag"]

    waiting = threading.Thread(target=wait)
    waiting.start()
    google.control("POST", "preempt", {"instance": "waits", "notice_s": 10})
    waiting.join(timeout=60)
    assert received[-1] == "TRUE"

    def is_absent() -> bool:
        return all(row.name != "waits" for row in google.instances.list(project=PROJECT, zone=ZONE))

    wait_for("its end: the termination action is DELETE", is_absent)


def test_metadata_changes_need_the_current_fingerprint(google: Google) -> None:
    made = _insert(google, "learns")
    body = compute_v1.Metadata(fingerprint=made.metadata.fingerprint, items=[{"key": "mood", "value": "good"}])

    def write() -> None:
        call = google.instances.set_metadata_unary
        google.finish(call(project=PROJECT, zone=ZONE, instance="learns", metadata_resource=body))

    write()
    assert _get(made, "instance/attributes/mood")[1] == "good"
    with pytest.raises(exceptions.PreconditionFailed):
        write()


def test_maintenance_is_announced(google: Google) -> None:
    made = _insert(google, "moved")
    _call(google, "simulate_maintenance_event", "moved")
    assert _get(made, "instance/maintenance-event")[1] == "TERMINATE_ON_HOST_MAINTENANCE"


def test_a_reservation_counts_and_limits_its_instances(google: Google) -> None:
    reservations = google.client(compute_v1.ReservationsClient)
    body = compute_v1.Reservation(
        {
            "name": "paid",
            "specific_reservation_required": True,
            "specific_reservation": {"count": 1, "instance_properties": {"machine_type": "g2-standard-8"}},
        }
    )
    google.finish(reservations.insert_unary(project=PROJECT, zone=ZONE, reservation_resource=body))
    bound: dict[str, Any] = {
        "scheduling": {"on_host_maintenance": "TERMINATE", "automatic_restart": True},
        "reservation_affinity": {
            "consume_reservation_type": "SPECIFIC_RESERVATION",
            "key": "compute.googleapis.com/reservation-name",
            "values": ["paid"],
        },
    }
    _insert(google, "first", **bound)
    found = reservations.get(project=PROJECT, zone=ZONE, reservation="paid")
    assert (found.specific_reservation.count, found.specific_reservation.in_use_count) == (1, 1)
    second = compute_v1.Instance(_body(google, "second", **bound))
    operation = google.instances.insert_unary(project=PROJECT, zone=ZONE, instance_resource=second)
    done = google.client(compute_v1.ZoneOperationsClient).wait(project=PROJECT, zone=ZONE, operation=operation.name)
    assert [error.code for error in done.error.errors] == ["CONDITION_NOT_MET"]
    assert "'paid'" in done.error.errors[0].message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"machine_type": f"zones/{ZONE}/machineTypes/g9-huge"}, "machineTypes/g9-huge' was not found"),
        ({"disks": []}, "Required field 'resource.disks' not specified"),
        ({"network_interfaces": [{}]}, "Required field 'resource.networkInterfaces[0].network' not specified"),
        (
            {"scheduling": {"provisioning_model": "SPOT", "on_host_maintenance": "MIGRATE"}},
            "do not support live migration",
        ),
        (
            {"scheduling": {"on_host_maintenance": "TERMINATE", "instance_termination_action": "DELETE"}},
            "You cannot specify a termination action",
        ),
        (
            {
                "scheduling": {
                    "provisioning_model": "SPOT",
                    "on_host_maintenance": "TERMINATE",
                    "automatic_restart": True,
                }
            },
            "must have automaticRestart be false",
        ),
        ({"labels": {"gpu-fleet:pool": "x"}}, "Label keys and values"),
        ({"metadata": {"items": [{"key": "a", "value": "1"}, {"key": "a", "value": "2"}]}}, "duplicate keys"),
    ],
    ids=["type", "disks", "network", "migrate", "standard with action", "spot restarts", "label", "metadata twice"],
)
def test_an_invalid_instance_is_refused_with_googles_message(
    google: Google, change: dict[str, Any], message: str
) -> None:
    body = compute_v1.Instance(_body(google, "wrong", **change))
    with pytest.raises(exceptions.GoogleAPICallError) as refused:
        google.instances.insert_unary(project=PROJECT, zone=ZONE, instance_resource=body)
    assert message in refused.value.message


def test_a_network_in_use_is_not_deleted(google: Google) -> None:
    with pytest.raises(exceptions.BadRequest, match="already being used by"):
        google.client(compute_v1.NetworksClient).delete_unary(project=PROJECT, network="net")


def test_another_project_is_not_found(google: Google) -> None:
    with pytest.raises(exceptions.NotFound, match="projects/other"):
        google.instances.list(project="other", zone=ZONE)


def test_an_injected_fault_makes_a_call_fail_once(google: Google) -> None:
    fault = {"service": "compute", "operation": "machineTypes.list", "code": "rateLimitExceeded", "status": 403}
    assert google.control("POST", "api-fault", fault)[0] == 200
    client = google.client(compute_v1.MachineTypesClient)
    with pytest.raises(exceptions.Forbidden, match="rateLimitExceeded"):
        client.list(project=PROJECT, zone=ZONE)
    assert "g2-standard-8" in {row.name for row in client.list(project=PROJECT, zone=ZONE)}
