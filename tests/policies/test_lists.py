"""The lists of the policy pack are what the program makes."""

import pytest

from scripts.policy_lists import __main__ as lists
from scripts.policy_lists import resource_types
from scripts.policy_lists.program import Program, run


@pytest.mark.parametrize("name", sorted(lists.LISTS))
def test_a_list_is_what_the_program_makes(name: str) -> None:
    written = (lists.FOLDER / name).read_text("utf-8")
    assert written == lists.texts()[name], "run `python -m scripts.policy_lists`"


def test_code_that_no_settings_reach_is_named() -> None:
    program = run()
    groups = frozenset(line for line in program.lines if line[0] != "components/aws/gpu_pool.py")
    with pytest.raises(resource_types.IncompleteError, match=r"components/aws/gpu_pool.py:\d+: CapacityReservation"):
        resource_types.of(Program(plans=program.plans, lines=groups))


def test_a_type_that_no_settings_make_is_named() -> None:
    program = run()
    without = [
        (config, tuple(r for r in made if r.type != "gcp:compute/reservation:Reservation"))
        for config, made in program.plans
    ]
    with pytest.raises(resource_types.IncompleteError, match=r"gpu_pool.py:\d+: gcp:compute/reservation:Reservation"):
        resource_types.of(Program(plans=without, lines=program.lines))
