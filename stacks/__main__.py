"""The entry point of `pulumi up`."""

import importlib
import os
from datetime import UTC, datetime
from typing import Any

import pulumi

from gpufleet.domain.model import Cloud
from gpufleet.settings import KEY
from gpufleet.settings.environment import Settings
from gpufleet.settings.problems import SettingsError
from stacks import accelerator_checks
from stacks.local_key import with_local_key
from stacks.reading import parse


def _load() -> Settings:
    """Return the settings of this stack. Raises SettingsError, which lists all errors."""
    values: dict[str, Any] = {KEY: pulumi.Config().get_object("fleet")}
    for cloud in Cloud:
        if region := pulumi.Config(cloud.value).get("region"):
            values[f"{cloud}:region"] = region
    stack = pulumi.get_stack()
    return parse(values, f"Pulumi.{stack}.yaml", datetime.now(UTC).date(), stack)


try:
    settings = with_local_key(_load(), os.environ)
except SettingsError as error:
    raise pulumi.RunError(str(error)) from error
if note := accelerator_checks.not_tried(settings):
    pulumi.log.info(f"machine types of this environment: {note}")
# the libraries of both clouds are large: import only the one in use
importlib.import_module(f"stacks.{settings.cloud}").deploy(settings)
