"""Product code outside `serving.accelerators` names no exporter's metric and no kind of accelerator."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gpufleet.toolchain.folders import ROOT
from serving import metrics
from serving.accelerators import CONTRACTS
from serving.metrics import Source

PACKAGES: Final = (
    "app", "cli", "components", "gpufleet", "hosts", "policies", "replay", "scripts", "serving", "stacks",
    "watchdogs",
)  # fmt: skip
LEFT_OUT: Final = ("serving/accelerators/", "gpufleet/ledger/migrations/", "scripts/vocabulary/")
FOR_PEOPLE: Final = {
    "DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_DRAM_ACTIVE", "DCGM_FI_DEV_GPU_TEMP",
    "DCGM_FI_DEV_MEMORY_TEMP", "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_MEM_CLOCK", "DCGM_FI_DEV_XID_ERRORS",
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
}  # fmt: skip
"""Series of NVIDIA's exporter for dashboards, alerts and the health check: no evidence, no cost."""
NAMES: Final = {
    prefix + series.name
    for contract in CONTRACTS.values()
    for series in contract.series
    for prefix in contract.prefixes
    if "_" in series.name
}
ALLOWED: Final = {
    "gpufleet/domain/catalogue.py": "the kinds of the machine catalogue, which name the contracts",
    "gpufleet/domain/tpu_slices.py": "prices and shapes of TPU slices",
    "gpufleet/prices/packaged.py": "a list of prices per kind",
    "serving/sizing/measurements.py": "the units in which published measurements count devices",
    "gpufleet/clouds/aws/cloudwatch.py": "metrics of the CloudWatch agent",
}
"""Modules that name kinds or other exporters' metrics, and why."""


def texts(path: Path) -> Iterator[str]:
    """Yield the string literals of a module, without docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            yield node.value


def modules() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if not name.startswith(LEFT_OUT):
                yield name, path


def test_no_module_names_a_metric_of_an_exporter() -> None:
    name_like = re.compile(r"[A-Za-z][A-Za-z0-9_]+")
    found = {
        (name, word)
        for name, path in modules()
        if name not in ALLOWED
        for text in texts(path)
        for word in name_like.findall(text)
        if word in NAMES or (word.startswith("DCGM_FI_") and word not in {*FOR_PEOPLE, "DCGM_FI_"})
    }
    assert found == set()


def test_no_module_names_a_kind_of_accelerator() -> None:
    found = {
        (name, text) for name, path in modules() if name not in ALLOWED for text in texts(path) if text in CONTRACTS
    }
    assert found == set()


def test_series_for_people_are_listed() -> None:
    assert set(metrics.series_names(Source.ACCELERATOR)) == FOR_PEOPLE
    assert not NAMES & FOR_PEOPLE
