"""`make chaos SEED=… MINUTES=…`: injects faults into a fleet on the embedded cloud, in the order of a seed, and
checks the result."""

import argparse
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

from tests.chaos.faults import BY_NAME
from tests.chaos.run import run_faults
from tests.fixtures.networks import free_network

INTERRUPTED = 130


def main() -> int:
    """Exit code: 0 all checks pass, 1 a check fails, 130 interrupted."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--seed", type=int, help="the same seed gives the same order (default: drawn)")
    parser.add_argument("--minutes", type=float, help="repeat faults for this time, each longer (default: each once)")
    parser.add_argument("--fault", action="append", choices=sorted(BY_NAME), help="only this one; repeatable")
    options = parser.parse_args()
    seed = random.randrange(10_000) if options.seed is None else options.seed  # noqa: S311 - not for secrets
    faults = [BY_NAME[name] for name in options.fault or BY_NAME]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    folder = Path(tempfile.mkdtemp(prefix="gpufleet-chaos-"))
    try:
        verdicts = run_faults(
            folder, free_network(), seed, faults=faults, minutes=options.minutes or None, announce=_print
        )
    except KeyboardInterrupt:
        shutil.rmtree(folder, ignore_errors=True)
        _print(f"seed {seed}: interrupted; its processes and files are removed")
        return INTERRUPTED
    except Exception:
        _print(f"seed {seed}: the run failed; logs in {folder}")
        raise
    for verdict in verdicts:
        _print(f"{'WRONG' if verdict.wrong else 'ok   '} {verdict.what}: {verdict.seen}")
        for one in verdict.wrong[:20]:
            _print(f"        {one}")
    wrong = sum(bool(verdict.wrong) for verdict in verdicts)
    if wrong:
        _print(f"seed {seed}: {wrong} of {len(verdicts)} checks failed; logs in {folder}")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    _print(f"seed {seed}: all {len(verdicts)} checks passed")
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt  # every started process is ended on the way out


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
