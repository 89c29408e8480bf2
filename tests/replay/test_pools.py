"""Tests of the detection of idle replicas in a pool, with a generator of pool histories."""

import numpy as np
import pytest

from replay import pools
from replay.histories import ActivityHistory


@pytest.mark.parametrize(
    ("rows", "idle"),
    [
        pytest.param("##..", "...x", id="two rows"),
        pytest.param("....", "xxxx", id="from the beginning"),
        pytest.param("#-..-", "...xx", id="a row missing before its idle period"),
        pytest.param(".-#-.-.", "xx....x", id="each second row missing"),
        pytest.param("#---", "....", id="silent after its work"),
        pytest.param("..--", "xxxx", id="silent after its idle period"),
        pytest.param("--..", "...x", id="comes late"),
        pytest.param("----", "....", id="never reported"),
        pytest.param("..!..", "xx..x", id="a row that only shows work"),
    ],
)
def test_a_replica_without_a_report_is_not_idle(rows: str, idle: str) -> None:
    found = ActivityHistory(
        replicas=["a", "b"],
        times=np.arange(len(rows)) * 60.0,
        step=60.0,
        reported=np.array([[letter in "#.", True] for letter in rows]),
        active=np.zeros((len(rows), 2), dtype=np.float32),
        work=np.array([[letter in "#!", False] for letter in rows]),
        pools=None,
    )
    quiet = pools.idle_by_tick(found)
    assert "".join(".x"[at] for at in quiet[:, 0].tolist()) == idle
    assert quiet[:, 1].all()
