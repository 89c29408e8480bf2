"""Write a plugin's folder, fit for `pulumi plugin install resource NAME VERSION -f FOLDER`."""

from __future__ import annotations

import importlib
import shlex
import stat
from pathlib import Path
from typing import Final

from localcloud.provider.schema import read_wheel
from localcloud.provider.server import Package

NAMES: Final = ("aws", "gcp")
"""The packages with a local provider."""

_LAUNCHER = """#!/bin/sh
# Started by the Pulumi engine. Written by `gpufleet`; belongs to one clone of gpu-fleet.
exec {python} -P -u -m localcloud.provider {package} --schema "$(dirname "$0")/schema.json" {options}"$@"
"""


def load_package(name: str) -> Package:
    """One of the packages of NAMES. The other cloud's libraries are not read."""
    package: Package = importlib.import_module(f"localcloud.provider.{name}.package").PACKAGE
    return package


def plugin_dir(destination: Path, python: str, *, name: str = "aws", plans_only: bool = False) -> Path:
    """Make the folder of a local provider plugin and return it.

    Args:
        destination: folder to write; made when missing, what is in it is overwritten.
        python: absolute path of the interpreter that has gpu-fleet and the cloud's Pulumi package installed.
        name: which package, one of NAMES.
        plans_only: it makes nothing, and takes what the local provider does not model.

    Raises:
        OSError: the folder cannot be written.
    """
    package = load_package(name)
    destination.mkdir(parents=True, exist_ok=True)
    read_wheel(package.resources).save(destination / "schema.json")
    launcher = destination / f"pulumi-resource-{package.name}"
    options = "--plans-only " if plans_only else ""
    text = _LAUNCHER.format(python=shlex.quote(python), package=package.name, options=options)
    launcher.write_text(text, encoding="utf-8")
    launcher.chmod(launcher.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return destination


def plugin_version(name: str = "aws") -> str:
    """The version to install the plugin under: that of the installed Pulumi package."""
    return load_package(name).version
