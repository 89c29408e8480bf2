"""Checks of reserved capacity with a fixed time span (blocks)."""

from collections.abc import Iterator
from datetime import date
from typing import Final

from components.capacity import BLOCK_ENDS_EARLY
from gpufleet.domain.model import Cloud
from gpufleet.settings.environment import PoolSettings, Reserved, Settings
from gpufleet.settings.problems import Problem

SOLD_AS_BLOCKS: Final = ("p4d.", "p4de.", "p5.", "p5e.", "p5en.", "p6-b200.", "p6-b300.")
"""Prefixes of the GPU machine types for which EC2's DescribeInstanceTypes lists the usage class `capacity-block` (as
shipped in moto 5.2.5, see `gpufleet/domain/data/SOURCE.md`).
"""


def check(settings: Settings, pool: PoolSettings, reserved: Reserved, path: str, today: date) -> Iterator[Problem]:
    """Yield every problem of a reservation's block. A reservation without a block has none."""
    block = reserved.block
    if block is None:
        return
    if reserved.existing is None:
        remedy = "buy the block first, because it is paid in advance, and write its id as existing"
        yield Problem(path=f"{path}.block", wrong="requires the id of a purchased block", remedy=remedy)
    if reserved.ends is not None:
        remedy = "remove it: block.ends is the end"
        yield Problem(
            path=f"{path}.ends", wrong="must not be set with a block", value=reserved.ends.isoformat(), remedy=remedy
        )
    if block.ends <= block.starts:
        yield Problem(
            path=f"{path}.block.ends",
            wrong=f"is not after starts {block.starts.isoformat()}",
            value=block.ends.isoformat(),
            remedy="write both as the cloud shows them",
        )
    elif settings.cloud is Cloud.AWS and block.ends - BLOCK_ENDS_EARLY <= block.starts:
        yield Problem(
            path=f"{path}.block.ends",
            wrong="leaves no time to serve: AWS begins to terminate instances 30 minutes before it",
            value=block.ends.isoformat(),
            remedy="write both as the cloud shows them",
        )
    elif block.ends.date() < today:
        remedy = "remove the reservation"
        yield Problem(path=f"{path}.block.ends", wrong="is in the past", value=block.ends.isoformat(), remedy=remedy)
    if settings.cloud is Cloud.AWS and not reserved.machine_type.startswith(SOLD_AS_BLOCKS):
        yield Problem(
            path=f"{path}.machine_type",
            wrong="is not sold as a Capacity Block",
            value=reserved.machine_type,
            remedy=f"choose one of {', '.join(name + '*' for name in SOLD_AS_BLOCKS)}, or remove the block",
        )
    if pool.watchdogs.spot is None:
        remedy = "add watchdogs.spot to the pool, or remove the block"
        wrong = "requires the spot watchdog, which starts and terminates its instances"
        yield Problem(path=f"{path}.block", wrong=wrong, remedy=remedy)
