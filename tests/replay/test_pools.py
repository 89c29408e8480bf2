"""Who of a pool is at rest, and a generator of histories of pools."""

import random
from pathlib import Path

import numpy as np
import pytest

from replay import pools
from replay.histories import ActivityHistory, load_activity

HEADER = "time_s,replica,gpu_active,requests_running,requests_waiting,tokens_total,pool"


def history(chance: random.Random, path: Path, ticks: int) -> ActivityHistory:
    """Spells and rests, holes, replicas that fall silent, one to three pools, steps that are even or not."""
    count, shape = chance.choice([2, 3, 5, 9]), chance.choice([(1.5, 2.5), (3.0, 0.5), (0.5, 5.0)])
    missing, empty, uneven = chance.choice([0, 0, 0.1]), chance.choice([0, 0, 0.1]), chance.random() < 0.3
    step, parts = chance.choice([60, 60, 300, 15.5]), chance.randrange(1, 4)
    silent = {name: chance.randrange(ticks) for name in range(count) if chance.random() < 0.2}
    levels = [chance.choice([0.05, 0.2, 0.5, 1.0]) for _ in range(count)]
    busy, until, time, lines = [False] * count, [0] * count, 0.0, [HEADER]
    for tick in range(ticks):
        for name in range(count):
            if tick >= until[name]:
                busy[name] = not busy[name]
                until[name] = tick + 1 + int(chance.lognormvariate(shape[not busy[name]], 1.2))
            if 0 < tick < ticks - 1 and (tick >= silent.get(name, ticks) or chance.random() < missing):
                continue
            active = "" if chance.random() < empty else f"{levels[name] * busy[name]:g}"
            lines.append(f"{time},{name},{active},{int(busy[name])},0,{tick if busy[name] else 0},{name % parts}")
        time += step * (chance.choice([1, 1, 1, 0.5, 7]) if uneven else 1)
    path.write_text("\n".join(lines) + "\n")
    return load_activity(path, 0.01)


@pytest.mark.parametrize(
    ("rows", "rest"),
    [
        pytest.param("##..", "...x", id="two rows"),
        pytest.param("....", "xxxx", id="from the beginning"),
        pytest.param("#-..-", "...xx", id="a row missing before its rest"),
        pytest.param(".-#-.-.", "xx....x", id="each second row missing"),
        pytest.param("#---", "....", id="silent after its work"),
        pytest.param("..--", "xxxx", id="silent after its rest"),
        pytest.param("--..", "...x", id="comes late"),
        pytest.param("----", "....", id="never heard of"),
        pytest.param("..!..", "xx..x", id="a row that says no more than that it works"),
    ],
)
def test_not_reported_is_not_at_rest(rows: str, rest: str) -> None:
    found = ActivityHistory(
        replicas=["a", "b"],
        times=np.arange(len(rows)) * 60.0,
        step=60.0,
        reported=np.array([[letter in "#.", True] for letter in rows]),
        active=np.zeros((len(rows), 2), dtype=np.float32),
        work=np.array([[letter in "#!", False] for letter in rows]),
        pools=None,
    )
    quiet = pools.at_rest(found)
    assert "".join(".x"[at] for at in quiet[:, 0].tolist()) == rest
    assert quiet[:, 1].all()
