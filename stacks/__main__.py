"""The entry point of `pulumi up`."""

import importlib
import os
from datetime import UTC, datetime

import pulumi

from gpufleet.settings.problems import SettingsError
from stacks import accelerator_checks
from stacks.local_key import with_local_key
from stacks.reading import load

try:
    settings = load(pulumi.Config(), pulumi.get_stack(), datetime.now(UTC).date())
    settings = with_local_key(settings, os.environ)
except SettingsError as error:
    raise pulumi.RunError(str(error)) from error
if note := accelerator_checks.not_tried(settings):
    pulumi.log.info(f"machine types of this environment: {note}")
# the libraries of both clouds are large: import only the one in use
importlib.import_module(f"stacks.{settings.cloud}").deploy(settings)
