"""`make demo`. Cleans up at its end, on Ctrl-C and after an error; after SIGKILL the next run does."""

import argparse
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from localcloud.lifecycle import processes
from localcloud.lifecycle.environment import enter, is_ours, local_environment, marked
from localcloud.lifecycle.selected_cloud import stack_of
from localcloud.lifecycle.waiting import LocalError
from localcloud.time_scale import FAST

from gpufleet.domain.model import Cloud
from gpufleet.toolchain.folders import Folders, find_folders
from gpufleet.toolchain.pulumi_cli import find_pulumi
from scripts.demo import cast
from scripts.demo.stage import Stage, StoryError, red
from scripts.demo.story import farewell, run_story


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 all steps succeeded, 1 a step failed, 2 invalid usage, 130 interrupted."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--cloud", type=Cloud, choices=list(Cloud), default=Cloud.AWS, help="the cloud of the demo")
    parser.add_argument(
        "--engine",
        default=cast.SIMULATED.engine.value,
        help=f"the engine of the pool chat: one of {', '.join(cast.Engine)}",
    )
    parser.add_argument(
        "--control",
        choices=("processes", "machine"),
        default="processes",
        help="machine: the control host is an emulated machine, which is lost and replaced during the demo",
    )
    parser.add_argument("--summary", type=Path, help="write the facts of the run to this file, as JSON")
    options = parser.parse_args(arguments)
    try:
        players = cast.choose(options.engine)
    except cast.CastError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    folders = find_folders(os.environ)
    pulumi = find_pulumi(folders)
    if pulumi is None:
        print("demo: the Pulumi CLI is missing: run `make setup`", file=sys.stderr)
        return 1
    enter(local_environment(folders, pulumi, {**FAST, **os.environ}, options.cloud))
    environment = marked(os.environ, folders)
    environment["COLUMNS"] = str(max(80, min(shutil.get_terminal_size((125, 40)).columns - 5, 140)))
    stage = Stage(root=folders.root, environment=environment, cloud=options.cloud, cast=players)
    stage.replaces_control_host = options.control == "machine"
    began = time.monotonic()
    code = _play(stage, folders)
    stage.facts |= {"exit_code": code, "steps": stage.steps, "seconds": round(time.monotonic() - began, 1)}
    if options.summary is not None:
        options.summary.write_text(json.dumps(stage.facts, indent=1, default=str) + "\n")
    if code == 0:
        print(f"\nThe demo succeeded in {stage.facts['seconds']:.0f} s. {players.closing}")
    return code


def _play(stage: Stage, folders: Folders) -> int:
    code = 1
    try:
        _clear_earlier(stage, folders)
        if stage.cast.engine is cast.Engine.VLLM:
            cast.prepare(stage.note)
        stage.settings = cast.write_settings(folders, stack_of(stage.cloud), stage.cast)
        if stage.cast.note:
            stage.note(stage.cast.note)
        run_story(stage)
        farewell(stage)
        code = 0
    except (StoryError, LocalError, cast.CastError) as error:
        print(red(f"\ndemo: {error}"), file=sys.stderr)
        stage.facts["error"] = str(error)
        _keep_logs(folders)
    except KeyboardInterrupt:
        print(red("\ndemo: interrupted; cleaning up"), file=sys.stderr)
        code = 130
    finally:
        _clean_up(stage, folders)
    return code


def _clear_earlier(stage: Stage, folders: Folders) -> None:
    if _left(folders):
        stage.note("an embedded cloud of this clone still runs (a demo that was killed?): it is stopped first")
        stage.end_cloud()


def _clean_up(stage: Stage, folders: Folders) -> None:
    """Whatever happened, nothing is left behind. A second Ctrl-C does not stop this; it has its own limits."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    stage.end_running()
    if not _left(folders):
        return
    try:
        stage.end_cloud()
    except StoryError as error:
        print(red(f"demo: {error}; run `gpufleet local down` to stop what is left"), file=sys.stderr)


def _left(folders: Folders) -> bool:
    return bool(processes.find_marked(lambda environment: is_ours(environment, folders)))


def _keep_logs(folders: Folders) -> None:
    """Machines' logs go with the machines: keep those of a story that failed."""
    kept = folders.local / "failed-demo"
    shutil.rmtree(kept, ignore_errors=True)
    for log in folders.machines.glob("*/var/log/**/*.log"):
        target = kept / log.relative_to(folders.machines)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(log, target)
    if kept.is_dir():
        print(f"demo: the machines' logs are kept in {kept}, the others in {folders.logs}", file=sys.stderr)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
