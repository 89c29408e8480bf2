"""Reads the settings of a stack and checks values against each other, before any resource is declared."""

from collections.abc import Mapping
from datetime import date
from typing import Any

import pulumi

from gpufleet.domain.model import Cloud
from gpufleet.settings import KEY, reading
from gpufleet.settings.environment import Settings
from gpufleet.settings.problems import SettingsError
from stacks.checks import check


def load(config: pulumi.Config, stack: str, today: date) -> Settings:
    """Return the settings of this stack. Raises SettingsError, which lists all errors."""
    values: dict[str, Any] = {KEY: config.get_object("fleet")}
    for cloud in Cloud:
        if region := pulumi.Config(cloud.value).get("region"):
            values[f"{cloud}:region"] = region
    return parse(values, f"Pulumi.{stack}.yaml", today, stack)


def parse(config: Mapping[str, Any], source: str, today: date, stack: str | None = None) -> Settings:
    """Return settings from the `config:` map of a settings file. Raises SettingsError.

    Errors of form are reported first. Values are compared with each other only if every value has a valid form.
    """
    settings = reading.read(config, source, stack)
    if problems := check(settings, today):
        raise SettingsError(source, tuple(problems))
    return settings
