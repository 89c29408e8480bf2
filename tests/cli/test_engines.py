"""`gpufleet engines` on pages of real engines, and on files that are not pages."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from app.errors import AppError, ErrorCode
from cli.commands import build
from serving.engines import CONTRACTS

PAGES = Path("tests/recorded/engines")
BUSY = str(PAGES / "sglang-0.5.23-cpu-busy.prom")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(build("engines"), ["engines", *arguments])


def refused(*arguments: str) -> AppError:
    error = run(*arguments).exception
    assert isinstance(error, AppError), error
    return error


def test_all_engines_are_listed() -> None:
    found = json.loads(run("list", "--json").output)
    assert [one["engine"] for one in found] == list(CONTRACTS)
    assert {one["engine"] for one in found if one["starts"]} == {
        kind for kind, contract in CONTRACTS.items() if contract.launch is not None
    }
    assert {one["engine"] for one in found if one["adapters"]} == {
        kind for kind, contract in CONTRACTS.items() if contract.launch is not None and contract.launch.adapters
    }
    assert "LoRA adapters: requests select one by the served name, a colon, and" in run("show", "sglang").output
    text = run("list").output
    assert all(one["title"] in text for one in found)


@pytest.mark.parametrize("engine", list(CONTRACTS))
def test_every_engine_is_explained(engine: str) -> None:
    done = run("show", engine)
    assert done.exit_code == 0
    assert all(series.name in done.output for series in CONTRACTS[engine].series)  # type: ignore[index]
    assert "source: " in done.output


def test_a_page_of_a_known_release_is_read() -> None:
    done = run("check", "sglang", BUSY, "--release", "0.5.23", "--json")
    found = json.loads(done.output)
    assert (done.exit_code, found["unknown"], found["missing"]) == (0, None, [])
    assert found["values"]["gpufleet_engine_requests_running"] == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param((), "kept: the release of SGLang is not known", id="no release"),
        pytest.param(
            ("--release", "9.0"), "kept: SGLang 9.0: the contract covers", id="a release without a contract"
        ),
        pytest.param(("--release", "0.5.23", "--window", "1"), "can prove that the engine is idle", id="one minute"),
    ],
)
def test_what_a_page_proves_depends_on_the_release(arguments: tuple[str, ...], message: str) -> None:
    done = run("check", "sglang", BUSY, *arguments)
    assert message in done.output
    assert done.exit_code == int(message.startswith("kept"))


def test_a_page_without_a_name_names_it(tmp_path: Path) -> None:
    page = tmp_path / "page.prom"
    page.write_text(Path(BUSY).read_text().replace("sglang:num_queue_reqs", "sglang:num_queued_reqs"))
    done = run("check", "sglang", str(page), "--release", "0.5.23")
    assert done.exit_code == 1
    assert "kept: SGLang 0.5.23 does not report sglang:num_queue_reqs" in done.output


def test_tokens_that_a_page_lacks_are_reported_as_unknown() -> None:
    done = run("check", "triton", str(PAGES / "triton-2.51.0.prom"), "--release", "2.51.0")
    assert "tokens are unknown: the page lacks nv_llm_input_token_len_sum, nv_llm_output_token_len_sum" in done.output


def test_wrong_use_is_refused_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "page").write_text("<html>")
    assert refused("check", "sglan", BUSY).code is ErrorCode.WRONG_USE
    assert "engine 'sglan': is not one of dynamo, lmdeploy" in str(refused("show", "sglan"))
    assert "expected numbers such as 0.32.0, got 'main'" in str(refused("check", "sglang", BUSY, "--release", "main"))
    assert "is not a metrics page" in str(refused("check", "sglang", str(tmp_path / "page")))
    assert "cannot be read: No such file or directory" in str(refused("check", "sglang", str(tmp_path / "none")))
    assert "http://127.0.0.1:1: cannot be read" in str(refused("check", "sglang", "http://127.0.0.1:1"))
