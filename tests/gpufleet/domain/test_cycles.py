"""The cyclic garbage collector: disabled during bulk reads, enabled again afterwards."""

import gc

import pytest

from gpufleet.domain import garbage


@pytest.mark.parametrize("kept", [pytest.param(True, id="kept"), pytest.param(False, id="let go")])
def test_the_collector_is_disabled_during_bulk_reads(kept: bool) -> None:
    frozen = gc.get_freeze_count()
    try:
        with garbage.collector_paused(kept=kept):
            inside = gc.isenabled()
        assert (inside, gc.isenabled()) == (False, True)
        assert (gc.get_freeze_count() > frozen) is kept
    finally:
        gc.unfreeze()


def test_a_disabled_collector_stays_disabled() -> None:
    gc.disable()
    try:
        with pytest.raises(ValueError, match="broken"), garbage.collector_paused():
            raise ValueError("broken")
        assert not gc.isenabled()
    finally:
        gc.enable()
