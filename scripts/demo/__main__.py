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
from scripts.demo import variants
from scripts.demo.session import DemoError, Session, red
from scripts.demo.steps import run_steps, shut_down


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 all steps succeeded, 1 a step failed, 2 invalid usage, 130 interrupted."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--cloud", type=Cloud, choices=list(Cloud), default=Cloud.AWS, help="the cloud of the demo")
    parser.add_argument(
        "--engine",
        default=variants.SIMULATED.engine.value,
        help=f"the engine of the pool chat: one of {', '.join(variants.Engine)}",
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
        variant = variants.choose(options.engine)
    except variants.VariantError as error:
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
    session = Session(root=folders.root, environment=environment, cloud=options.cloud, variant=variant)
    session.replaces_control_host = options.control == "machine"
    began = time.monotonic()
    code = _run_all(session, folders)
    session.facts |= {"exit_code": code, "steps": session.steps, "seconds": round(time.monotonic() - began, 1)}
    if options.summary is not None:
        options.summary.write_text(json.dumps(session.facts, indent=1, default=str) + "\n")
    if code == 0:
        print(f"\nThe demo succeeded in {session.facts['seconds']:.0f} s. {variant.closing}")
    return code


def _run_all(session: Session, folders: Folders) -> int:
    code = 1
    try:
        _clear_earlier(session, folders)
        if session.variant.engine is variants.Engine.VLLM:
            variants.prepare(session.note)
        session.settings = variants.write_settings(folders, stack_of(session.cloud), session.variant)
        if session.variant.note:
            session.note(session.variant.note)
        run_steps(session)
        shut_down(session)
        code = 0
    except (DemoError, LocalError, variants.VariantError) as error:
        print(red(f"\ndemo: {error}"), file=sys.stderr)
        session.facts["error"] = str(error)
        _keep_logs(folders)
    except KeyboardInterrupt:
        print(red("\ndemo: interrupted; cleaning up"), file=sys.stderr)
        code = 130
    finally:
        _clean_up(session, folders)
    return code


def _clear_earlier(session: Session, folders: Folders) -> None:
    if _left(folders):
        session.note("an embedded cloud of this clone still runs (a demo that was killed?): it is stopped first")
        session.end_cloud()


def _clean_up(session: Session, folders: Folders) -> None:
    """Whatever happened, nothing is left behind. A second Ctrl-C does not stop this; it has its own limits."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    session.end_running()
    if not _left(folders):
        return
    try:
        session.end_cloud()
    except DemoError as error:
        print(red(f"demo: {error}; run `gpufleet local down` to stop what is left"), file=sys.stderr)


def _left(folders: Folders) -> bool:
    return bool(processes.find_marked(lambda environment: is_ours(environment, folders)))


def _keep_logs(folders: Folders) -> None:
    """Machines' logs go with the machines: keep those of a demo that failed."""
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
