"""The language host as the engine sees it: a process that prints its port and serves LanguageRuntime."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from google.protobuf import empty_pb2, struct_pb2
from pulumi.runtime.proto import analyzer_pb2 as analyzer
from pulumi.runtime.proto import analyzer_pb2_grpc, language_pb2_grpc
from pulumi.runtime.proto import language_pb2 as language

LIMIT_S = 120


@dataclass
class Host:
    process: subprocess.Popen[str]
    stub: language_pb2_grpc.LanguageRuntimeStub


@pytest.fixture
def host() -> Generator[Host]:
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "localcloud.language_host", "-v=3", "127.0.0.1:1"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process, grpc.insecure_channel(f"127.0.0.1:{int(process.stdout.readline())}") as channel:
        yield Host(process, language_pb2_grpc.LanguageRuntimeStub(channel))
        process.kill()


def pack(folder: Path, text: str) -> language.RunPluginRequest:
    (folder / "__main__.py").write_text(text)
    options = struct_pb2.Struct()
    options.update({"virtualenv": str(Path(sys.executable).parents[1])})
    info = language.ProgramInfo(
        root_directory=str(folder), program_directory=str(folder), entry_point=".", options=options
    )
    return language.RunPluginRequest(
        kind="analyzer", args=["127.0.0.1:1"], info=info, pwd=str(folder), env=["COLOUR=blue=green"]
    )


def started(stream: Iterator[language.RunPluginResponse]) -> None:
    """Send the stack configuration of the pack, as the engine does. The pack starts only after it."""
    request = analyzer.AnalyzerStackConfigureRequest(
        project="gpu-fleet", stack="aws-dev", config={"aws:region": "us-east-1"}, dry_run=True
    )
    with grpc.insecure_channel(f"127.0.0.1:{int(next(stream).stdout)}") as channel:
        stub = analyzer_pb2_grpc.AnalyzerStub(channel)
        stub.Handshake(analyzer.AnalyzerHandshakeRequest(), timeout=LIMIT_S)
        with pytest.raises(grpc.RpcError) as refused:
            # these packs do not listen on the port that they print
            stub.ConfigureStack(request, timeout=LIMIT_S)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE  # pyright: ignore[reportAttributeAccessIssue]


def ends(pid: int) -> bool:
    """Whether the process ends within the limit. A zombie counts as ended."""
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


def test_reports_the_supported_pulumi_version(host: Host) -> None:
    assert host.stub.GetPluginInfo(empty_pb2.Empty(), timeout=LIMIT_S).version == "3.259.0"


def test_pack_receives_its_stack_and_its_output_is_forwarded(host: Host, tmp_path: Path) -> None:
    request = pack(
        tmp_path,
        "import os, sys\nprint(1, flush=True)\n"
        "print(*(os.environ[k] for k in ('COLOUR', 'PULUMI_PROJECT', 'PULUMI_STACK', 'PULUMI_DRY_RUN')))\n"
        "print(os.environ['PULUMI_CONFIG'])\nprint('oh', file=sys.stderr)\nraise SystemExit(7)",
    )
    stream = host.stub.RunPlugin(request, timeout=LIMIT_S)
    started(stream)
    messages = list(stream)
    output = b"".join(m.stdout for m in messages).decode().splitlines()
    assert output == ["blue=green gpu-fleet aws-dev true", '{"aws:region": "us-east-1"}']
    assert b"".join(m.stderr for m in messages) == b"oh\n"
    assert messages[-1].exitcode == 7


def test_pack_that_prints_no_port_is_an_error(host: Host, tmp_path: Path) -> None:
    stream = host.stub.RunPlugin(pack(tmp_path, "print('no port')"), timeout=LIMIT_S)
    address = f"127.0.0.1:{int(next(stream).stdout)}"
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as refused:
        analyzer_pb2_grpc.AnalyzerStub(channel).GetPluginInfo(empty_pb2.Empty(), timeout=LIMIT_S)
    assert "the policy pack did not start" in str(refused.value)


def test_missing_virtual_environment_is_named_in_the_error(host: Host, tmp_path: Path) -> None:
    options = struct_pb2.Struct()
    options.update({"virtualenv": "no such place"})
    info = language.ProgramInfo(root_directory=str(tmp_path), program_directory=str(tmp_path), options=options)
    answer = host.stub.Run(language.RunRequest(info=info, project="p", stack="s"), timeout=LIMIT_S)
    assert "no such place" in answer.error
    assert "make setup" in answer.error


@pytest.mark.parametrize(
    "number",
    [pytest.param(n, id=n.name) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)],
)
def test_child_processes_end_with_the_host(host: Host, tmp_path: Path, number: signal.Signals) -> None:
    # a pack that ignores Ctrl-C, as a policy pack does
    request = pack(
        tmp_path,
        "import os, signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "print(1, flush=True)\nprint(os.getpid(), flush=True)\ntime.sleep(600)",
    )
    stream = host.stub.RunPlugin(request, timeout=LIMIT_S)
    started(stream)
    child = int(next(stream).stdout)
    os.kill(host.process.pid, number)
    assert host.process.wait(LIMIT_S) in (0, -number)
    assert ends(child)


def test_host_ends_when_the_engine_is_killed() -> None:
    # a process replaces the engine: it starts the host, prints its pid and exits at once
    engine = subprocess.run(
        [
            sys.executable,
            "-c",
            "import subprocess, sys\n"
            "p = subprocess.Popen([sys.executable, '-u', '-m', 'localcloud.language_host', 'x'],"
            " stdout=subprocess.PIPE)\n"
            "p.stdout.readline(); print(p.pid, flush=True)\nimport os; os._exit(0)",
        ],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert ends(int(engine.stdout))
