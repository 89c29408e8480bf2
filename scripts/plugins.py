"""`python -m scripts.plugins STACK`: checks that Pulumi's provider for a stack is installed, before `make up` runs
it.

Pulumi downloads a missing provider without verification, so the Makefile disables that for stacks of a real cloud. An
operator installs the provider once with the SHA-256 of its release; Pulumi then verifies it.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from localcloud.provider.install import NAMES, plugin_version

LOCAL: Final = "-local"
RELEASES: Final = "https://github.com/pulumi/pulumi-{name}/releases/tag/v{version}"


def missing(stack: str, environment: Mapping[str, str]) -> str:
    """Return the instructions to install the provider of a stack. "" if it is installed or the stack is embedded."""
    name = stack.rsplit("/", 1)[-1].partition("-")[0]
    if stack.endswith(LOCAL) or name not in NAMES:
        return ""
    version = plugin_version(name)
    home = Path(environment.get("PULUMI_HOME") or Path(environment.get("HOME", "/")) / ".pulumi")
    if (home / "plugins" / f"resource-{name}-v{version}").is_dir():
        return ""
    return (
        f"Pulumi's provider {name} {version} is not in {home / 'plugins'}, and nothing would verify it if Pulumi "
        f"fetched it by itself.\nTake the SHA-256 of its archive for this system from the checksums of "
        f"{RELEASES.format(name=name, version=version)}\nand run this once:\n\n"
        f"    pulumi plugin install resource {name} {version} --checksum SHA256\n"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code. 0: installed. 1: missing."""
    parser = argparse.ArgumentParser(description="Is the provider of this stack installed?")
    parser.add_argument("stack")
    if what := missing(parser.parse_args(arguments).stack, os.environ):
        print(f"plugins: {what}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
