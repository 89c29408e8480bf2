"""The calls of the engine to a language host."""

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, Final

import grpc
from google.protobuf import empty_pb2, json_format
from pulumi.runtime.proto import language_pb2 as language
from pulumi.runtime.proto import language_pb2_grpc, plugin_pb2

from localcloud.language_host.children import Children
from localcloud.language_host.policy_proxy import PolicyProxy
from localcloud.language_host.program import ALREADY_REPORTED

MODULES: Final = {"analyzer": "pulumi.policy", "resource": "pulumi.run.plugin"}
"""What runs a Python plugin, by kind."""


class LanguageHost(language_pb2_grpc.LanguageRuntimeServicer):
    """Runs programs and Python plugins in their project's interpreter."""

    def __init__(self, engine: str, children: Children) -> None:
        self._engine = engine
        self._children = children

    def Handshake(self, request: language.LanguageHandshakeRequest, context: Any) -> Any:
        self._engine = request.engine_address or self._engine
        return language.LanguageHandshakeResponse()

    def GetPluginInfo(self, request: empty_pb2.Empty, context: Any) -> plugin_pb2.PluginInfo:
        return plugin_pb2.PluginInfo(version=version("pulumi"))

    def GetRequiredPackages(self, request: Any, context: Any) -> language.GetRequiredPackagesResponse:
        # empty: the engine loads a provider when the first resource needs it
        return language.GetRequiredPackagesResponse()

    def GetRequiredPlugins(self, request: Any, context: Any) -> language.GetRequiredPluginsResponse:
        return language.GetRequiredPluginsResponse()

    def GetProgramDependencies(self, request: Any, context: Any) -> language.GetProgramDependenciesResponse:
        names = ("pulumi", "pulumi-aws", "pulumi-gcp", "pulumi-policy")
        found = _versions(interpreter(request.info), names)
        return language.GetProgramDependenciesResponse(
            dependencies=[language.DependencyInfo(name=name, version=text) for name, text in found.items()]
        )

    def About(self, request: language.AboutRequest, context: Any) -> language.AboutResponse:
        return language.AboutResponse(executable=interpreter(request.info), version=sys.version.split()[0])

    def InstallDependencies(self, request: Any, context: Any) -> Iterator[language.InstallDependenciesResponse]:
        text = "dependencies are installed by `make setup`, not by this language host\n"
        yield language.InstallDependenciesResponse(stderr=text.encode())

    def RuntimeOptionsPrompts(self, request: Any, context: Any) -> language.RuntimeOptionsResponse:
        return language.RuntimeOptionsResponse()

    def Cancel(self, request: empty_pb2.Empty, context: Any) -> empty_pb2.Empty:
        self._children.end_all()
        return empty_pb2.Empty()

    def Run(self, request: language.RunRequest, context: grpc.ServicerContext) -> language.RunResponse:
        with tempfile.TemporaryDirectory(prefix="gpu-fleet-run-") as folder:
            file = Path(folder, "settings.json")
            file.touch(mode=0o600)  # it holds the stack's configuration with its secrets
            file.write_text(json.dumps(self._settings(request)))
            python = interpreter(request.info)
            try:
                process = self._start(python, ["program", str(file)], request.pwd, {}, piped=False)
            except OSError as error:
                return language.RunResponse(error=_cannot_start(python, error))
            context.add_callback(lambda: self._children.end(process))
            code = process.wait()
            self._children.forget(process)
        if code == ALREADY_REPORTED:
            return language.RunResponse(bail=True)
        if code:
            return language.RunResponse(error=f"the program ended with exit code {code}")
        return language.RunResponse()

    def RunPlugin(
        self, request: language.RunPluginRequest, context: grpc.ServicerContext
    ) -> Iterator[language.RunPluginResponse]:
        python = interpreter(request.info)
        program = request.info.program_directory or request.program
        if module := MODULES.get(request.kind):
            arguments = ["module", module, *request.args, program]
        else:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, f"cannot run a Python plugin of kind {request.kind!r}")
        environment = dict(pair.split("=", 1) for pair in request.env if "=" in pair)
        if request.kind == "analyzer":
            yield from self._policy_pack(python, arguments, request.pwd, environment, context)
            return
        try:
            process = self._start(python, arguments, request.pwd, environment, piped=True)
        except OSError as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, _cannot_start(python, error))
        context.add_callback(lambda: self._children.end(process))
        yield from _pass_on(process)
        code = process.wait()
        self._children.forget(process)
        yield language.RunPluginResponse(exitcode=code)

    def _policy_pack(
        self,
        python: str,
        arguments: list[str],
        pwd: str,
        environment: Mapping[str, str],
        context: grpc.ServicerContext,
    ) -> Iterator[language.RunPluginResponse]:
        proxy = PolicyProxy(
            lambda of_stack: self._start(python, arguments, pwd, {**environment, **of_stack}, piped=True)
        )
        context.add_callback(proxy.stop)
        yield _stdout(f"{proxy.port}\n".encode())
        proxy.start_ended.wait()
        process = proxy.process
        if process is None:
            return
        context.add_callback(lambda: self._children.end(process))
        yield from _pass_on(process)
        code = process.wait()
        self._children.forget(process)
        yield language.RunPluginResponse(exitcode=code)

    def _start(
        self, python: str, arguments: list[str], pwd: str, environment: Mapping[str, str], *, piped: bool
    ) -> subprocess.Popen[bytes]:
        whole = {**os.environ, **environment, "GPUFLEET_PARENT_PID": str(os.getpid())}
        return self._children.start(python, arguments, cwd=pwd or None, environment=whole, piped=piped)

    def _settings(self, request: language.RunRequest) -> dict[str, Any]:
        program = Path(request.info.program_directory, request.info.entry_point)
        return {
            "project": request.project,
            "stack": request.stack,
            "organization": request.organization,
            "root_directory": request.info.root_directory,
            "pwd": request.pwd,
            "program": str(program),
            "arguments": list(request.args),
            "config": dict(request.config),
            "secret_keys": list(request.configSecretKeys),
            "preview": request.dryRun,
            "parallel": request.parallel,
            "monitor": request.monitor_address,
            "engine": self._engine,
        }


def interpreter(info: language.ProgramInfo) -> str:
    """The Python of the `virtualenv` option, else $PULUMI_PYTHON_CMD, else the host's own."""
    options = json_format.MessageToDict(info.options)
    if environment := options.get("virtualenv"):
        return str(Path(info.root_directory, str(environment), "bin", "python"))
    return os.environ.get("PULUMI_PYTHON_CMD") or sys.executable


def _cannot_start(python: str, error: OSError) -> str:
    return f"{python} cannot be started ({error.strerror or error}); run `make setup` to create the environment"


def _versions(python: str, names: tuple[str, ...]) -> dict[str, str]:
    code = (
        "import importlib.metadata as m, json, sys\n"
        "have = {d.name.lower(): d.version for d in m.distributions()}\n"
        "print(json.dumps({n: have[n] for n in sys.argv[1:] if n in have}))"
    )
    done = subprocess.run([python, "-c", code, *names], capture_output=True, text=True, timeout=30)
    return json.loads(done.stdout) if done.returncode == 0 else {}


def _pass_on(process: subprocess.Popen[bytes]) -> Iterator[language.RunPluginResponse]:
    """Both output streams of a plugin, until both end."""
    ready: queue.Queue[language.RunPluginResponse | None] = queue.Queue()

    def pump(pipe: IO[bytes], wrap: Callable[[bytes], language.RunPluginResponse]) -> None:
        while chunk := os.read(pipe.fileno(), 65536):
            ready.put(wrap(chunk))
        ready.put(None)

    for pipe, wrap in ((process.stdout, _stdout), (process.stderr, _stderr)):
        if pipe is not None:
            threading.Thread(target=pump, args=(pipe, wrap), daemon=True).start()
    open_pipes = 2
    while open_pipes:
        message = ready.get()
        if message is None:
            open_pipes -= 1
        else:
            yield message


def _stdout(chunk: bytes) -> language.RunPluginResponse:
    return language.RunPluginResponse(stdout=chunk)


def _stderr(chunk: bytes) -> language.RunPluginResponse:
    return language.RunPluginResponse(stderr=chunk)
