"""Accelerators: one module and one contract each. Code outside this package never asks which kind it is."""

import pkgutil
from collections.abc import Iterator, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Final

from serving.accelerators.contract import AcceleratorContract


def _contracts() -> Iterator[AcceleratorContract]:
    """Yield the `CONTRACT` of each module of this package; also inside the agent's archive."""
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name):
        contract = getattr(import_module(f"{__name__}.{module.name}"), "CONTRACT", None)
        if contract is not None:
            assert isinstance(contract, AcceleratorContract)
            yield contract


CONTRACTS: Final[Mapping[str, AcceleratorContract]] = MappingProxyType(
    {contract.kind: contract for contract in _contracts()}
)
"""All contracts, by kind."""
