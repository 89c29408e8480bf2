"""Runs the real program, with the engine's answers played."""

import json
import runpy
from pathlib import Path

import pulumi
import yaml

from gpufleet.domain.model import Cloud
from gpufleet.settings import document
from gpufleet.settings.document import FleetDocument
from tests.fakes import RecordingMocks

ROOT = Path(__file__).parents[2]
DOCUMENT = {Cloud.AWS: "aws:s3/bucketObjectv2:BucketObjectv2", Cloud.GCP: "gcp:storage/bucketObject:BucketObject"}


def run(path: Path, recording: RecordingMocks) -> None:
    """Run the program with a settings file; `recording` plays the cloud."""
    stack = path.stem.removeprefix("Pulumi.")
    pulumi.runtime.set_mocks(recording, project="gpu-fleet", stack=stack, preview=False)
    config = yaml.safe_load(path.read_text())["config"]
    pulumi.runtime.set_all_config(
        {key: value if isinstance(value, str) else json.dumps(value) for key, value in config.items()}
    )

    @pulumi.runtime.test
    def program() -> None:
        runpy.run_path(str(ROOT / "stacks"), run_name="__main__")

    program()


def written(mocks: RecordingMocks, cloud: Cloud) -> FleetDocument:
    """The fleet document that the program wrote."""
    content = mocks.named(DOCUMENT[cloud], "fleet-document")["content"]
    # Google's library marks every object's content as a secret, which the engine passes wrapped
    return document.parse(content["value"] if isinstance(content, dict) else content, "the stack")
