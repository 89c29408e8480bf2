"""Sizes of MIG profiles and partitions."""

import pytest

from gpufleet.domain import catalogue
from gpufleet.domain.slices import MIG_GPUS, another_fits, size_of


@pytest.mark.parametrize(
    ("profile", "gpu", "units", "expected"),
    [
        pytest.param("1g.10gb", "H100-80GB", 1, (1, 7, 1, 8), id="an eighth of the memory"),
        pytest.param("1g.20gb", "H100-80GB", 1, (1, 7, 2, 8), id="double memory"),
        pytest.param("3g.71gb", "H200-141GB", 1, (3, 7, 4, 8), id="H200"),
        pytest.param("2g.48gb", "RTX-PRO-6000", 1, (2, 4, 2, 4), id="four compute slices"),
        pytest.param("1g.10gb+me", None, 1, (1, 7, None, None), id="attribute, GPU unknown"),
        pytest.param("1g.10gb.me", "H100-80GB", 1, (1, 7, 1, 8), id="attribute in a name of Kubernetes"),
        pytest.param("0g.10gb", "H100-80GB", 1, None, id="no compute slice"),
        pytest.param("1c.3g.40gb", "A100-80GB", 1, (3, 7, 4, 8), id="compute instance"),
        pytest.param("1G.34GB", None, 1, (1, 7, 1, 8), id="upper case"),
        pytest.param("1g.24gb", None, 1, None, id="GPUs differ"),
        pytest.param("1g.11gb", None, 1, None, id="no GPU has it"),
        pytest.param("cpx", None, 1, (1, 8, None, None), id="partition of an AMD GPU"),
        pytest.param("", "Trainium1", 2, (1, 2, None, None), id="core of a Neuron device"),
        pytest.param("", "L4", 1, None, id="no profile and no equal parts"),
        pytest.param("NPS4", None, 1, None, id="not a profile"),
    ],
)
def test_size_of_a_slice(profile: str, gpu: str | None, units: int, expected: tuple[object, ...] | None) -> None:
    found = size_of(profile, gpu, units)
    assert (None if found is None else (found.compute, found.of, found.memory, found.memory_of)) == expected


@pytest.mark.parametrize("gpu", MIG_GPUS)
def test_stated_number_of_each_profile_fits_and_one_more_does_not(gpu: str) -> None:
    for profile, most in MIG_GPUS[gpu].profiles.items():
        size = MIG_GPUS[gpu].size(profile)
        assert size.memory is not None and size.memory_of is not None
        assert most * size.compute <= size.of and most * size.memory <= size.memory_of
        too_many = most + 1
        is_4g = size.compute == 4 and size.of == 7  # a GPU has place for one, though not by compute alone
        assert is_4g or too_many * size.compute > size.of or too_many * size.memory > size.memory_of


@pytest.mark.parametrize(
    ("profiles", "fits"),
    [
        (["3g.40gb", "3g.40gb"], False),
        (["1g.20gb"] * 4, False),
        (["2g.20gb"] * 3, True),
        (["4g.40gb"], True),
        ([], True),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else str(value),
)
def test_another_slice_fits_if_compute_and_memory_are_left(profiles: list[str], fits: bool) -> None:
    sizes = [MIG_GPUS["H100-80GB"].size(profile) for profile in profiles]
    assert another_fits("H100-80GB", sizes) is fits
    assert another_fits(None, sizes) is None


def test_gpus_of_the_catalogue_have_their_own_profiles() -> None:
    """A machine's GPU is found by its name in the catalogue."""
    names = {machine.gpu for machine in catalogue.machines()}
    divided = {"A100-40GB", "A100-80GB", "H100-80GB", "H200-141GB", "B200-180GB", "B300", "GB200", "GB300"}
    assert {*divided, "RTX-PRO-6000"} == names & set(MIG_GPUS)
