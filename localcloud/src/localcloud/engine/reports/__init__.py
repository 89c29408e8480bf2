"""What each engine reports about its requests, and when: one module per engine, with the name of its contract."""

import pkgutil
from collections.abc import Iterator, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Final

from localcloud.engine.reports.base import EngineReport


def _reports() -> Iterator[tuple[str, type[EngineReport]]]:
    """Yield the name and the `REPORT` of each module of this package."""
    for module in pkgutil.iter_modules(__path__):
        report = getattr(import_module(f"{__name__}.{module.name}"), "REPORT", None)
        if report is not None:
            assert issubclass(report, EngineReport)
            yield module.name, report


REPORTS: Final[Mapping[str, type[EngineReport]]] = MappingProxyType(dict(_reports()))
"""By engine. A report's `version` is the release whose API the simulated engine has."""
