"""What must hold of capacity that was bought for a fixed time."""

from collections.abc import Iterator
from datetime import date
from typing import TYPE_CHECKING

from stacks.problems import Problem

if TYPE_CHECKING:
    from stacks.settings import Pool, Reserved


def check(pool: "Pool", reserved: "Reserved", path: str, today: date) -> Iterator[Problem]:
    """Everything wrong with the block of one reservation; nothing where it has none."""
    block = reserved.block
    if block is None:
        return
    if reserved.existing is None:
        remedy = "buy it first and write its id as existing; a block is money spent at once"
        yield Problem(path=f"{path}.block", wrong="needs a block that was bought", remedy=remedy)
    if reserved.ends is not None:
        remedy = "remove it: block.ends says when"
        yield Problem(
            path=f"{path}.ends", wrong="stands beside a block", value=reserved.ends.isoformat(), remedy=remedy
        )
    if block.ends <= block.starts:
        yield Problem(
            path=f"{path}.block.ends",
            wrong=f"is not after starts {block.starts.isoformat()}",
            value=block.ends.isoformat(),
            remedy="write both as the cloud shows them",
        )
    elif block.ends.date() < today:
        remedy = "remove the reservation"
        yield Problem(path=f"{path}.block.ends", wrong="is past", value=block.ends.isoformat(), remedy=remedy)
    if pool.watchdogs.spot is None:
        remedy = "add watchdogs.spot to the pool, or remove the block"
        yield Problem(path=f"{path}.block", wrong="needs the spot watchdog, which starts and ends it", remedy=remedy)
