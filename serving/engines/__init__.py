"""Inference engines: one module and one contract each. Code outside this package never asks which engine it is."""

import pkgutil
from collections.abc import Iterator, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Final

from serving.engines.contract import Contract


def _contracts() -> Iterator[Contract]:
    """Yield the `CONTRACT` of each module of this package; also inside the agent's archive."""
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name):
        contract = getattr(import_module(f"{__name__}.{module.name}"), "CONTRACT", None)
        if contract is not None:
            assert isinstance(contract, Contract)
            yield contract


CONTRACTS: Final[Mapping[str, Contract]] = MappingProxyType({contract.kind: contract for contract in _contracts()})
"""All contracts, by engine."""
DEFAULT: Final = "vllm"
"""The engine of settings and agents that name none: releases before the contracts knew only this one."""


def contract_of(kind: str | None) -> Contract | None:
    """Return the contract of an engine by its name; None: this release does not know it."""
    return CONTRACTS.get(DEFAULT if kind is None else kind)
