"""Real vLLM 0.32 on the CPU: installed from its lock file if missing; skipped only if installation fails."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from localcloud.engine_environment import VLLM, EngineEnvironmentError
from localcloud.vllm import ENVIRONMENT

INSIDE = Path(__file__).with_name("inside.py")
Ask = Callable[[dict[str, Any]], dict[str, Any]]


@pytest.fixture(scope="session")
def vllm() -> Path:
    """Return the folder of vLLM's environment."""
    try:
        return VLLM.install(lambda _line: None)
    except (EngineEnvironmentError, OSError) as error:
        pytest.skip(f"vLLM cannot be installed here: {error}")


@pytest.fixture(scope="session")
def ask(vllm: Path, tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """Return a function that runs jobs with vLLM's own Python (see inside.py)."""
    log = tmp_path_factory.mktemp("vllm") / "inside.log"

    def run(jobs: dict[str, Any]) -> dict[str, Any]:
        with log.open("w") as errors:
            done = subprocess.run(
                [str(vllm / "bin" / "python"), str(INSIDE)],
                input=json.dumps(jobs),
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                timeout=800,
                check=False,
                env={**os.environ, **ENVIRONMENT},
            )
        assert done.returncode == 0, log.read_text()[-3000:]
        return json.loads(done.stdout)

    return run
