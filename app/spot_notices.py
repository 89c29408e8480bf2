"""Spot notices start the daemon's next spot pass early. They are a hint: without them the pass runs at its usual
time.
"""

import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from app.ledgers import ledger_name
from gpufleet.clouds.aws.calls import AwsCalls
from gpufleet.clouds.aws.notices import AwsNotices
from gpufleet.domain.activity import CloudError
from gpufleet.domain.model import Cloud
from gpufleet.logs import Log
from gpufleet.settings.document import FleetDocument
from watchdogs.schedule import Schedule
from watchdogs.spot.decide import WATCHDOG as SPOT

AFTER_ERROR: Final = timedelta(minutes=1)


def place_of(document: FleetDocument) -> str:
    """The fleet in the names of jobs."""
    return f"{document.cloud}-{document.environment}"


def listen(documents: Sequence[FleetDocument], schedule: Schedule, stop: threading.Event, log: Log) -> None:
    """Listen in a thread for each fleet that has spot pools and a queue. The threads end with the process."""
    for document in documents:
        if document.cloud is Cloud.AWS and any(pool.watchdogs.spot is not None for pool in document.pools):
            threading.Thread(
                target=_listen,
                args=(document, schedule, stop, log),
                name=f"notices {place_of(document)}",
                daemon=True,
            ).start()


def _listen(document: FleetDocument, schedule: Schedule, stop: threading.Event, log: Log) -> None:
    fleet = ledger_name(document)
    notices = AwsNotices(AwsCalls(document.region), document.environment)
    while not stop.is_set():
        try:
            if not notices.there():
                return
            while not stop.is_set():
                if (count := notices.wait()) > 0:
                    log.info("spot_notices", fleet=fleet, count=count, detail="a spot pass starts now")
                    schedule.soon(f"{SPOT} {place_of(document)}")
        except CloudError as error:
            log.error("spot_notices", fleet=fleet, outcome="failed", error=error)
            stop.wait(AFTER_ERROR.total_seconds())
