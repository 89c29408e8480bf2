"""Reads settings and checks values against each other, before any resource is declared."""

from collections.abc import Mapping
from datetime import date
from typing import Any

from gpufleet.settings import reading
from gpufleet.settings.environment import Settings
from gpufleet.settings.problems import SettingsError
from stacks.checks import check


def parse(config: Mapping[str, Any], source: str, today: date, stack: str | None = None) -> Settings:
    """Return settings from the `config:` map of a settings file. Raises SettingsError.

    Errors of form are reported first. Values are compared with each other only if every value has a valid form.
    """
    settings = reading.read(config, source, stack)
    if problems := check(settings, today):
        raise SettingsError(source, tuple(problems))
    return settings
