"""Run a Pulumi program inside a stack, as the settings in a JSON file say. Executed by `supervised.py`."""

import asyncio
import json
import logging
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any, Final

import pulumi
import pulumi.runtime

ALREADY_REPORTED: Final = 32
"""The exit code of a program whose error has been reported to the user; as in Pulumi's own host."""


def run(settings: dict[str, Any]) -> int:
    """Configure the runtime and run the program. Returns the exit code."""
    pulumi.runtime.set_all_config(settings["config"], settings["secret_keys"])
    pulumi.runtime.configure(
        pulumi.runtime.Settings(
            project=settings["project"],
            stack=settings["stack"],
            organization=settings["organization"] or "organization",
            parallel=settings["parallel"] or None,
            dry_run=settings["preview"],
            monitor=settings["monitor"],
            engine=settings["engine"],
            root_directory=settings["root_directory"],
        )
    )
    os.chdir(settings["pwd"] or ".")
    program = settings["program"]
    sys.argv = [program, *settings["arguments"]]
    # a failed stack leaves futures unobserved; the warning about that would not help the user
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    try:
        asyncio.run(pulumi.runtime.run_in_stack(lambda: _run_path(program)))
    except pulumi.RunError as error:
        pulumi.log.error(str(error))
        return ALREADY_REPORTED
    except Exception as error:  # noqa: BLE001 - whatever the program raises is its author's to read
        pulumi.log.error("Program failed with an unhandled exception:\n" + _own_traceback(error, program))
        return ALREADY_REPORTED
    return 0


def _run_path(program: str) -> None:
    if Path(program).is_dir() and not Path(program, "__main__.py").is_file():
        raise pulumi.RunError(f"unable to find the program: there is no __main__.py in {program}")
    runpy.run_path(program, run_name="__main__")


def _own_traceback(error: BaseException, program: str) -> str:
    """The traceback from the program's first line on, without the frames of the host."""
    frames = list(traceback.extract_tb(error.__traceback__))
    home = str(Path(program).resolve())
    first = next((i for i, frame in enumerate(frames) if frame.filename.startswith(home)), 0)
    lines = traceback.format_list(frames[first:]) + traceback.format_exception_only(error)
    return "".join(lines)


if __name__ == "__main__":
    code = run(json.loads(Path(globals()["SETTINGS"]).read_text()))
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(code)
