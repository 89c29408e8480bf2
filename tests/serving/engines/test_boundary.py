"""Code outside `serving/engines` uses canonical metrics and does not ask which engine it is."""

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from serving import metrics
from serving.engines import CONTRACTS

ALLOWED: Final[dict[str, Any]] = tomllib.loads(Path("tests/serving/engines/allowed.toml").read_text())
OUTSIDE: Final = ("serving/engines/", "localcloud/", "tests/")
"""These write or check the pages of engines."""
NAMES: Final = {series.name for contract in CONTRACTS.values() for series in contract.series}
PREFIXES: Final = re.compile(
    # `nv_` of `nv_inference_count`
    rf"\b(?:{'|'.join(sorted({re.split('(?<=[:_])', name)[0] for name in NAMES}))})(?!\s)"
)
KINDS: Final = frozenset(CONTRACTS)


def findings(code: str) -> Iterator[str]:
    """Names of engines' metrics, and comparisons with a name of an engine."""
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Constant(value=str(text)) if found := PREFIXES.search(text):
                yield f"line {node.lineno}: {found[0]}"
            case ast.Compare():
                parts = [node.left, *node.comparators]
                named = {part.value for one in parts for part in ast.walk(one) if isinstance(part, ast.Constant)}
                yield from (f"line {node.lineno}: compares with {name!r}" for name in named & KINDS)
            case ast.MatchValue(value=ast.Constant(value=value)) if value in KINDS:
                yield f"line {node.lineno}: compares with {value!r}"
            case _:
                pass


def modules() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.py"], check=True, capture_output=True, text=True
    )
    return [path for path in listed.stdout.splitlines() if not path.startswith(OUTSIDE) and Path(path).exists()]


def test_no_module_outside_the_contracts_asks_which_engine_it_is() -> None:
    found = {path: list(findings(Path(path).read_text())) for path in modules()}
    named = {path: lines for path, lines in found.items() if lines}
    assert {path: lines for path, lines in named.items() if path not in ALLOWED} == {}
    assert ALLOWED.keys() - named.keys() == set(), "entries of allowed.toml that match nothing"
    assert all(len(entry["reason"]) > 20 for entry in ALLOWED.values())


@pytest.mark.parametrize(
    ("code", "count"),
    [
        pytest.param('QUERY = "sum(vllm:num_requests_running)"', 1, id="a metric of an engine"),
        pytest.param('QUERY = f"rate({x}, nv_inference_count)"', 1, id="in an f-string"),
        pytest.param('if pool.engine == "sglang": pass', 1, id="its name"),
        pytest.param('if pool.engine in ("vllm", "tgi"): pass', 2, id="several names"),
        pytest.param('match kind:\n    case "triton": pass', 1, id="a case"),
        pytest.param('QUERY = "gpufleet_engine_requests_running"', 0, id="a canonical metric"),
        pytest.param('CONTRACT = CONTRACTS["vllm"]', 0, id="reading a name"),
    ],
)
def test_the_check_finds_what_it_forbids(code: str, count: int) -> None:
    assert len(list(findings(code))) == count


def test_metrics_without_a_canonical_name_are_in_no_query() -> None:
    """Engines other than vLLM do not have them: a query with them would give 0 or nothing for these engines."""
    own = [metric.name for metric in metrics.ALL.values() if PREFIXES.match(metric.name)]
    constants = [name for name, value in vars(metrics).items() if getattr(value, "name", None) in own]
    assert len(constants) == 5
    used = re.compile(r"\bmetrics\.(?:" + "|".join(constants) + r")\b")
    assert [path for path in modules() if used.search(Path(path).read_text())] == []
