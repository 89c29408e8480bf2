"""Real engines on the CPU: installed from their lock files if missing; skipped only if the installation fails."""

from collections.abc import Callable
from pathlib import Path

import pytest
from localcloud.engine_environment import ENVIRONMENTS, EngineEnvironmentError

from benchmarks.comparison.player import Observation
from benchmarks.comparison.results import observe

Observe = Callable[[str], list[Observation]]


def install(kind: str) -> None:
    """Install a real engine if it is missing. Skips the test if that fails."""
    try:
        ENVIRONMENTS[kind].install(lambda _line: None)
    except (EngineEnvironmentError, OSError) as error:
        pytest.skip(f"{kind} cannot be installed here: {error}")


def _once(folder: Path, *, is_real: bool) -> Observe:
    found: dict[str, list[Observation]] = {}

    def once(kind: str) -> list[Observation]:
        if kind not in found:
            if is_real:
                install(kind)
            found[kind] = observe(kind, folder, is_real=is_real)
        return found[kind]

    return once


@pytest.fixture(scope="module")
def installed() -> None:
    """The real engines that machines of the embedded cloud run."""
    for kind in ("vllm", "sglang"):
        install(kind)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Observe:
    """Play the runs on a real engine, once per module."""
    return _once(tmp_path_factory.mktemp("real"), is_real=True)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Observe:
    """Play the runs on the simulated engine, once per module."""
    return _once(tmp_path_factory.mktemp("simulated"), is_real=False)
