"""What `pulumi up` would declare for settings, recorded."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.fakes import RecordingMocks
from tests.stacks.running import run


def declared(config: Mapping[str, Any], stack: str, folder: Path) -> RecordingMocks:
    """Runs the program; `config`: the map of that name of a settings file."""
    recording = RecordingMocks()
    path = folder / f"Pulumi.{stack}.yaml"
    path.write_text(yaml.safe_dump({"config": copy.deepcopy(dict(config))}))
    run(path, recording)
    return recording
