"""What all tests share: nothing is judged by the speed of the machine, and nothing may hang."""

import pytest
from hypothesis import HealthCheck, settings

SLOW_LIMIT_S = 1800

settings.register_profile("loaded-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("loaded-machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give slow proofs a longer limit than pyproject.toml gives every test."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_LIMIT_S))
