"""`python -m localcloud.triton DIR …` runs the real `tritonserver` of NVIDIA's package with the models of `models/`.

DIR: a folder for the model repository, which is created. Further arguments are tritonserver's. The process ID stays
(exec).
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from localcloud.engine_environment import TRITON

MODELS: Final = Path(__file__).with_name("models")
_PYTHON: Final = "3.11"


def prepare(folder: Path, environment: Path) -> list[str]:
    """Copy the models and the backend of Python models into a folder. Return the arguments that name them."""
    server = _packages(environment) / "pytriton" / "tritonserver"
    shutil.copytree(MODELS, folder / "models")
    for model in (folder / "models").iterdir():
        (model / "1").mkdir(exist_ok=True)
    backend = shutil.copytree(server / "backends" / "python", folder / "backends" / "python")
    # the server starts this program for each model; it is made for one release of Python
    shutil.copy(server / "python_backend_stubs" / _PYTHON / "triton_python_backend_stub", backend)
    return [f"--model-repository={folder / 'models'}", f"--backend-directory={folder / 'backends'}"]


def _packages(environment: Path) -> Path:
    return environment / "lib" / f"python{_PYTHON}" / "site-packages"


def _python_libraries(environment: Path) -> str:
    """The library folder of the Python that the environment is made of."""
    program = "import sysconfig; print(sysconfig.get_config_var('LIBDIR'))"
    command = [str(environment / "bin" / "python"), "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


def main() -> None:
    """Become tritonserver."""
    environment = TRITON.link.resolve()
    program = _packages(environment) / "pytriton" / "tritonserver" / "bin" / "tritonserver"
    if not program.exists():
        sys.exit("Triton is not installed here: run `python -m localcloud.engine_environment triton`")
    named = prepare(Path(sys.argv[1]), environment)
    # without Python's own library folder, the system's older one is loaded and the models fail
    libraries = [str(_packages(environment) / "nvidia_pytriton.libs"), _python_libraries(environment)]
    variables = {
        **os.environ,
        "LD_LIBRARY_PATH": ":".join(libraries),
        "PATH": f"{environment / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": "",
    }
    os.execve(program, [str(program), *named, *sys.argv[2:]], variables)  # noqa: S606


if __name__ == "__main__":
    main()
