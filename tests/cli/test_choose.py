"""`gpufleet choose`: the table, its sources and errors, what is not ranked, and what other tools give."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from app.errors import AppError, ErrorCode
from cli.commands import build
from serving.sizing.choice import UnrankedCode
from serving.sizing.options import ServingOption
from serving.sizing.speed import SpeedOrigin
from tests.fixtures.sized_models import model_folder
from tests.fixtures.small_fleet import document

LLAMA_8B, LLAMA_70B = "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-70B-Instruct"


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("models") / "8b", LLAMA_8B)


def choose(model: Path, *arguments: str, width: int = 80) -> Result:
    size = ("--rps", "5", "--input", "1000", "--output", "200")
    return CliRunner().invoke(build("choose"), ["choose", str(model), *size, *arguments], env={"COLUMNS": str(width)})


def answer(model: Path, *arguments: str) -> dict[str, Any]:
    done = choose(model, "--json", *arguments)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_each_row_names_its_source_error_and_whether_it_was_tried(llama: Path) -> None:
    found = answer(llama, "--itl", "0.06")
    assert {row["speed_is"] for row in found["options"]} <= {origin.value for origin in SpeedOrigin}
    for row in found["options"]:
        assert row["speed_source"]
        assert row["tried_on_hardware"] is False
        error = row["speed_error"]
        if row["speed_is"] == "modelled":
            assert -1 < error["low"] <= error["high"]
            assert "not fitted to" in error["basis"]
    costs = [float(row["usd_per_million_tokens"]) for row in found["options"]]
    assert costs == sorted(costs)


def test_what_is_not_ranked_has_a_code(llama: Path) -> None:
    found = answer(llama, "--itl", "0.06", "--option", "fp8", "--option", "awq")
    rows = found["not_ranked"]
    codes = {code.value for code in UnrankedCode}
    assert {row["code"] for row in rows} <= codes
    assert {"no_price", "no_throughput_source", "hardware_cannot", "no_published_effect"} <= {r["code"] for r in rows}
    without_fp8 = {row["machine_type"] for row in rows if row["code"] == "hardware_cannot"}
    assert {"g4dn.xlarge", "g5.xlarge", "p4d.24xlarge", "a2-ultragpu-1g"} <= without_fp8
    ranked = {(row["machine_type"], row["capacity_type"], row["serving_option"]) for row in found["options"]}
    not_ranked = {(row["machine_type"], row["capacity_type"], row["serving_option"]) for row in rows}
    assert not ranked & not_ranked


@pytest.mark.parametrize("width", [80, 100, 120])
def test_the_table_keeps_the_width_of_the_terminal(llama: Path, width: int) -> None:
    done = choose(llama, "--itl", "0.06", "--option", "fp8", width=width)
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    end = next(number for number, line in enumerate(lines) if line.startswith("* not tried on hardware"))
    table = lines[:end]
    assert table[0].split() == ["USD/Mtok", "USD/h", "machines", "throughput", "error", "TTFT", "s", "ms/tok"]
    assert all(len(line) <= width for line in table)
    assert "…" not in "".join(table)
    assert any("modelled [1]" in line and " %" in line for line in table)
    assert lines[end + 1].startswith("[1] ")


def test_the_text_lists_reasons_effects_and_other_tools(llama: Path) -> None:
    text = choose(llama, "--itl", "0.06", "--option", "eagle", "--draft-model", str(llama)).stdout
    assert "published effect of eagle: EAGLE, 4 tokens: 0.72 × tokens per s at batch of 100 requests" in text
    # the draft model is this model itself, for the test: 2 × 16,060,522,496 bytes
    assert "\noption eagle: 29.92 GiB of weights\n" in text
    assert "\nMélange: not covered (other_model)\n" in text
    assert "\nAIConfigurator: " in text
    assert "\nnot ranked, no_price: " in text


def test_each_row_has_the_cost_by_aiconfigurator_if_it_covers_it(tmp_path: Path) -> None:
    model = model_folder(tmp_path / "70b", LLAMA_70B)
    done = CliRunner().invoke(
        build("choose"),
        ["choose", str(model), "--rps", "2", "--input", "1000", "--output", "1000", "--fp8", "--json"],
    )
    found = json.loads(done.stdout)
    peer = found["compared_with"]["aiconfigurator"]
    assert peer["covered"] is True and peer["why_not"] is None
    by_machine = {
        (row["machine_type"], row["capacity_type"]): row["usd_per_million_tokens"] for row in peer["options"]
    }
    covered = [row for row in found["options"] if row["aiconfigurator_usd_per_million_tokens"] is not None]
    assert covered
    for row in covered:
        own = by_machine[row["machine_type"], row["capacity_type"]]
        assert row["aiconfigurator_usd_per_million_tokens"] == own
    assert any(row["aiconfigurator_usd_per_million_tokens"] is None for row in found["options"])
    assert found["compared_with"]["melange"]["why_not"] == "other_model"


def test_options_state_bytes_checkpoint_and_published_effects(llama: Path) -> None:
    found = answer(llama, "--option", "awq", "--option", "eagle", "--draft-model", str(llama))
    awq, eagle = found["serving_options"]
    assert (awq["option"], awq["bits_per_weight"], awq["needs_checkpoint"]) == ("awq", 4.15625, True)
    assert awq["weights_bytes"] == 16_060_522_496 - int(16_060_522_496 * (16 - 4.15625) / 16)
    assert eagle["weights_bytes"] == 2 * 16_060_522_496
    assert {effect["concurrent_requests"] is None for effect in awq["published_effects"]} == {True}
    assert [64, 100] in [effect["concurrent_requests"] for effect in eagle["published_effects"]]
    assert any(effect["factor"] < 1 for effect in eagle["published_effects"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(("--option", "eagle"), "--option eagle: its second model uses memory", id="no draft model"),
        pytest.param(("--draft-model", "x"), "only --option eagle and --option draft", id="a draft model too many"),
        pytest.param(("--option", "int3"), "'int3' is not one of", id="an unknown option"),
        pytest.param(("--pool", "chat"), "no fleet is selected: set --fleet URL", id="a pool of no fleet"),
        pytest.param(("--engine", "sglang"), "--engine: not modelled for sglang", id="another engine"),
    ],
)
def test_wrong_use_names_the_option_and_the_remedy(
    llama: Path, arguments: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GPUFLEET_FLEET", raising=False)
    done = choose(llama, *arguments)
    if isinstance(done.exception, AppError):
        assert done.exception.code is ErrorCode.WRONG_USE
        assert message in str(done.exception)
    else:
        assert done.exit_code == 2
        assert message in " ".join(done.output.replace("│", " ").split())


def test_a_pool_without_tokens_is_named_and_changes_nothing(llama: Path, tmp_path: Path) -> None:
    fleet = str(document(tmp_path))
    with_pool = answer(llama, "--fleet", fleet, "--pool", "chat")
    assert with_pool["served_here"] == []
    assert with_pool["options"] == answer(llama, "--fleet", fleet)["options"]


def test_every_option_is_accepted(llama: Path) -> None:
    options = [argument for option in ServingOption for argument in ("--option", option.value)]
    found = answer(llama, "--cloud", "gcp", *options, "--draft-model", str(llama))
    assert [one["option"] for one in found["serving_options"]] == [option.value for option in ServingOption]
