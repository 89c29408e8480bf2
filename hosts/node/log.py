"""Logs work that takes time: one line when the work ends."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from gpufleet.logs import Log, elapsed_s
from hosts.node.ports import StoppedError


@contextmanager
def timed(log: Log, event: str, **fields: Any) -> Generator[dict[str, Any]]:
    """Log one line when the block ends: its duration and outcome (done, stopped by a drain, or failed).

    The block can add fields to the dictionary that it receives.
    """
    began = time.monotonic()
    try:
        yield fields
    except Exception as error:
        stopped = isinstance(error, StoppedError)
        write, outcome = (log.info, "stopped") if stopped else (log.error, "failed")
        write(event, **fields, duration_s=elapsed_s(began), outcome=outcome, error=None if stopped else error)
        raise
    log.info(event, **fields, duration_s=elapsed_s(began), outcome="done")
