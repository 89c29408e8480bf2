"""Looks for dead cycles: left out while much is read, and on again after it."""

import gc

import pytest

from gpufleet.domain import garbage


@pytest.mark.parametrize("kept", [pytest.param(True, id="kept"), pytest.param(False, id="let go")])
def test_no_cycle_is_looked_for_while_much_is_read(kept: bool) -> None:
    frozen = gc.get_freeze_count()
    try:
        with garbage.not_looked_for(kept=kept):
            inside = gc.isenabled()
        assert (inside, gc.isenabled()) == (False, True)
        assert (gc.get_freeze_count() > frozen) is kept
    finally:
        gc.unfreeze()


def test_who_had_them_off_finds_them_off() -> None:
    gc.disable()
    try:
        with pytest.raises(ValueError, match="broken"), garbage.not_looked_for():
            raise ValueError("broken")
        assert not gc.isenabled()
    finally:
        gc.enable()
