"""`gpufleet accelerators` on pages in the format of each exporter."""

import json
import socket
import threading
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from app.errors import AppError
from cli.commands import build
from serving.accelerators import CONTRACTS
from serving.accelerators.relabelling import relabelling


def run(*arguments: str) -> Result:
    return CliRunner().invoke(build("accelerators"), ["accelerators", *arguments])


def refused(*arguments: str) -> str:
    error = run(*arguments).exception
    assert isinstance(error, AppError), error
    return str(error)


def pages(folder: Path, *texts: str) -> list[str]:
    paths = [folder / f"{number}.prom" for number, _ in enumerate(texts)]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return [str(path) for path in paths]


def mig(first: float, second: float, minute: int, watts: float = 300) -> str:
    energy = f'DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{UUID="G",GPU_I_ID="1"}} {minute * watts * 60_000:.0f}\n'
    return energy + "".join(
        f'DCGM_FI_PROF_GR_ENGINE_ACTIVE{{UUID="G",GPU_I_ID="{number}",GPU_I_PROFILE="3g.40gb"}} {share}\n'
        for number, share in ((1, first), (2, second))
    )


def test_all_kinds_are_listed_as_not_tried_on_hardware() -> None:
    found = json.loads(run("list", "--json").output)
    assert [one["accelerator"] for one in found] == list(CONTRACTS)
    text = run("list").output
    assert text.count("not tried on hardware") == len(CONTRACTS)


@pytest.mark.parametrize("kind", list(CONTRACTS))
def test_every_kind_is_explained(kind: str) -> None:
    done = run("show", kind)
    assert done.exit_code == 0
    assert all(series.name in done.output for series in CONTRACTS[kind].series)
    assert "source: " in done.output


def test_of_two_slices_over_three_pages_the_idle_one_is_found(tmp_path: Path) -> None:
    done = run("check", *pages(tmp_path, mig(0.5, 0, 1), mig(0.5, 0, 2), mig(0.5, 0, 3)), "--json")
    found = json.loads(done.output)
    assert done.exit_code == 0
    assert found["accelerator"] == "nvidia"
    assert [(unit["slice"], unit["proved"], unit["profile"]) for unit in found["units"]] == [
        ("1", "working", "3g.40gb"),
        ("2", "idle", "3g.40gb"),
    ]


def test_a_partition_that_reads_0_is_reported_as_unknown(tmp_path: Path) -> None:
    text = (
        'amd_gpu_gfx_activity{serial_number="S",gpu_id="1",gpu_partition_id="1",gpu_compute_partition_type="cpx"} 0\n'
    )
    done = run("check", *pages(tmp_path, text))
    assert done.exit_code == 1
    assert "unknown: missing_series, partition_not_measured" in done.output


@pytest.mark.parametrize(
    ("power", "message"),
    [
        pytest.param(
            'DCGM_FI_DEV_POWER_USAGE{UUID="G"} 300\n',
            "power: one of the two is in a wrong unit of measurement",
            id="power",
        ),
        pytest.param("", "the power of all accelerators", id="no power"),
    ],
)
def test_energy_in_another_unit_is_reported(tmp_path: Path, power: str, message: str) -> None:
    texts = [
        f'DCGM_FI_PROF_GR_ENGINE_ACTIVE{{UUID="G"}} 0.5\n{power}'
        f'DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{UUID="G"}} {joules}\n'
        for joules in (50_000, 68_000)
    ]
    done = run("check", *pages(tmp_path, *texts))
    assert done.exit_code == 1
    assert f"G: energy contradicts {message}" in done.output


def test_a_page_whose_last_number_may_have_lost_digits_is_refused(tmp_path: Path) -> None:
    whole, cut = pages(tmp_path, mig(0.87, 0.87, 1), mig(0.87, 0.87, 2).rstrip("\n").removesuffix(".87"))
    assert "is incomplete: its last line does not end with a newline" in refused("check", whole, cut)


def test_a_general_name_is_not_enough_to_recognise_a_kind(tmp_path: Path) -> None:
    (page,) = pages(tmp_path, 'duty_cycle{make="nvidia",accelerator_id="0"} 5\n')
    assert "has no metric of a known accelerator" in refused("check", page)
    (page,) = pages(tmp_path, f"system_memory_used_bytes 5\n{mig(0.5, 0, 1)}")
    assert json.loads(run("check", page, "--json").output)["accelerator"] == "nvidia"


def test_a_host_without_a_runtime_shows_no_unit(tmp_path: Path) -> None:
    done = run("check", *pages(tmp_path, "system_memory_used_bytes 5\n"))
    assert done.exit_code == 1
    assert "no unit: no_workload" in done.output


def dcgm(*joules: float | None) -> list[str]:
    """Pages of an idle GPU with these energies; None: the page has no energy."""
    energies = (
        "" if one is None else f'DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{UUID="G"}} {one * 1000}\n' for one in joules
    )
    return [f'DCGM_FI_PROF_GR_ENGINE_ACTIVE{{UUID="G"}} 0\n{energy}' for energy in energies]


@pytest.mark.parametrize(
    ("texts", "code", "message"),
    [
        pytest.param(dcgm(9), 0, "can be proved idle", id="one page"),
        pytest.param(dcgm(None), 1, "unknown: missing_series", id="one page without energy"),
        pytest.param(dcgm(0, 3000, 6000), 0, "idle", id="pages"),
        pytest.param(dcgm(5, 5, 5), 1, "unknown: repeated_values", id="frozen"),
        pytest.param(dcgm(None, None, None), 1, "unknown: missing_series", id="pages without energy"),
        pytest.param([*dcgm(0, 3000), "process_cpu_seconds_total 1\n"], 1, "unknown", id="the unit vanished"),
    ],
)
def test_the_exit_code_states_whether_the_activity_is_known(
    tmp_path: Path, texts: list[str], code: int, message: str
) -> None:
    done = run("check", *pages(tmp_path, *texts), "--kind", "nvidia")
    assert done.exit_code == code
    assert message in done.output


BODY = 'DCGM_FI_PROF_GR_ENGINE_ACTIVE{UUID="a"} 0\nDCGM_FI_DEV_GPU_UTIL{UUID="a"} 97\n'
FIRST_LINE = BODY.partition("\n")[0] + "\n"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        pytest.param(
            f"HTTP/1.1 200 OK\r\nContent-Length: {len(BODY)}\r\n\r\n{FIRST_LINE}", "is incomplete", id="cut"
        ),
        pytest.param(
            f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n99\r\n{FIRST_LINE}", "not complete", id="cut chunk"
        ),
        pytest.param("SSH-2.0-OpenSSH_9.2\r\n", "is not valid", id="another protocol"),
        pytest.param(
            "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", "answered with status 503 Busy", id="an error"
        ),
    ],
)
def test_an_answer_that_is_not_a_whole_page_is_refused(answer: str, message: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer.encode())

        thread = threading.Thread(target=serve)
        thread.start()
        address = f"http://127.0.0.1:{server.getsockname()[1]}/metrics"
        assert message in refused("check", address, "--kind", "nvidia")
        thread.join()


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1:x/", "http://[::1/", "http://127.0.0.1:9/me trics", "http:///m"]
)
def test_an_invalid_address_is_refused(address: str) -> None:
    assert refused("check", address, "--kind", "nvidia").startswith(f"{address}: ")


def test_wrong_use_is_refused_with_a_remedy(tmp_path: Path) -> None:
    assert "accelerator 'gpu': is not one of amd, neuron, nvidia, tpu" in refused("show", "gpu")
    (page,) = pages(tmp_path, "process_cpu_seconds_total 5\n")
    assert (
        "has no metric of a known accelerator; give the page of its exporter, or name the kind with --kind"
        in refused("check", page)
    )
    (page,) = pages(tmp_path, "<html>")
    assert "is not a metrics page" in refused("check", page)


@pytest.mark.parametrize(
    ("watts", "joules_per_page"),
    [
        pytest.param(75_200, 75.2 * 60, id="power in mW"),
        pytest.param(0.0752, 75.2 * 60, id="power in kW"),
        pytest.param(75.2, 75_200 * 60, id="energy in µJ"),
        pytest.param(75.2, 0.0752 * 60, id="energy in J"),
        pytest.param(75_200, 75_200 * 60, id="both, which agree"),
    ],
)
def test_a_unit_that_is_wrong_by_a_thousand_is_named_and_proves_nothing(
    tmp_path: Path, watts: float, joules_per_page: float
) -> None:
    gpu = 'gpu="0",UUID="GPU-9f",modelName="NVIDIA H200"'
    texts = [
        f"DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{gpu}}} 0\n"
        f"DCGM_FI_DEV_POWER_USAGE{{{gpu}}} {watts}\n"
        f"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{gpu}}} {8e11 + joules_per_page * 1000 * number}\n"
        for number in range(3)
    ]
    found = run("check", *pages(tmp_path, *texts), "--json")
    (unit,) = json.loads(found.stdout)["units"]
    assert (found.exit_code, unit["proved"], unit["unknown"]) == (1, "unknown", ["implausible_value"])


def test_the_rules_for_a_prometheus_of_the_user_are_those_of_the_product() -> None:
    printed = run("relabelling", "nvidia")
    assert printed.exit_code == 0
    assert yaml.safe_load(printed.stdout) == {"metric_relabel_configs": relabelling([CONTRACTS["nvidia"]])}
    assert yaml.safe_load(run("relabelling").stdout) == {"metric_relabel_configs": relabelling(CONTRACTS.values())}
