"""Settings of divided GPUs: accepted values, messages for rejected ones, and the prices that a check shows."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from cli.commands import build
from tests.fixtures.stacks.settings_files import AWS, FLEET, GCP, changed, problems

SLICES = f"{FLEET}.pools.1.slices"


def divided(slices: dict[str, Any], machine: str = "a2-ultragpu-1g") -> dict[str, Any]:
    """The settings of gcp-prod whose second pool has one machine type and divides its GPUs."""
    bought = {"on_demand": {"max": 1, "machine_types": [machine]}}
    return changed(GCP, {"pools.1.capacity": bought, "pools.1.slices": slices})


@pytest.mark.parametrize(
    "slices",
    [
        {"kind": "mig", "profile": "1g.10gb"},
        {"kind": "mig", "profile": "1g.10gb+me"},
        {"kind": "time_slicing", "replicas": 4},
        {"kind": "mps", "replicas": 2},
    ],
    ids=lambda one: one["kind"] + one.get("profile", ""),
)
def test_slices_that_the_gpu_can_have_are_accepted(slices: dict[str, Any]) -> None:
    assert [line for line in problems(divided(slices)) if "slices" in line] == []


@pytest.mark.parametrize(
    ("slices", "machine", "line"),
    [
        pytest.param(
            {"kind": "mig", "profile": "1g.5gb"},
            "a2-ultragpu-1g",
            f"{SLICES}.profile: is not a profile of A100-80GB (a2-ultragpu-1g) (is '1g.5gb'); write one of 1g.10gb,"
            " 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb",
            id="a profile of another GPU",
        ),
        pytest.param(
            {"kind": "mig", "profile": "1g.10gb"},
            "g2-standard-4",
            f"{SLICES}.profile: needs a GPU with MIG, and g2-standard-4 has L4 (is '1g.10gb'); remove slices, or"
            " choose other machine types",
            id="a GPU without MIG",
        ),
        pytest.param(
            {"kind": "time_slicing", "replicas": 4},
            "ct5lp-hightpu-1t",
            f"{SLICES}.kind: needs an NVIDIA GPU, and ct5lp-hightpu-1t has TPU-v5e (is 'time_slicing'); remove"
            " slices, or choose other machine types",
            id="time-slicing of a TPU",
        ),
        pytest.param(
            {"kind": "mig"},
            "a2-ultragpu-1g",
            f"{SLICES}.profile: is missing; write a MIG profile such as 1g.10gb",
            id="no profile",
        ),
        pytest.param(
            {"kind": "mps"},
            "a2-ultragpu-1g",
            f"{SLICES}.replicas: is missing; write the users of each GPU",
            id="no replicas",
        ),
        pytest.param(
            {"kind": "time_slicing", "replicas": 2, "profile": "1g.10gb"},
            "a2-ultragpu-1g",
            f"{SLICES}.profile: is not a setting of time_slicing; remove it",
            id="a profile without MIG",
        ),
    ],
)
def test_slices_that_the_gpu_cannot_have_are_refused(slices: dict[str, Any], machine: str, line: str) -> None:
    assert [one for one in problems(divided(slices, machine)) if "slices" in one] == [line]


def test_settings_check_shows_the_price_of_a_slice(tmp_path: Path) -> None:
    path = tmp_path / "Pulumi.aws-prod.yaml"
    machine = {"on_demand": {"max": 12, "machine_types": ["p4d.24xlarge"]}}
    config = changed(AWS, {"pools.0.capacity": machine, "pools.0.slices": {"kind": "mig", "profile": "2g.10gb"}})
    path.write_text(yaml.safe_dump({"config": config}))
    shown = CliRunner().invoke(build("settings"), ["settings", "check", str(path)])
    (line,) = [one for one in shown.output.splitlines() if "slices of" in one]
    assert "p4d.24xlarge (on-demand): 24 slices of 2g.10gb" in line
    assert "1/7 of the price stranded" in line and "Not tried on hardware" in line
