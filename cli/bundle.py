"""`gpufleet bundle`: the control host's software as one file in the bucket, named by its digest."""

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Annotated, Final

import typer

from app.errors import AppError, Code
from app.fleets import load
from app.stores import open_place
from cli.options import FleetOption
from cli.output import STDERR, STDOUT, print_json
from control import bundle as bundles

ROOT: Final = Path(__file__).resolve().parent.parent
PLATFORMS: Final = {"x86_64": "x86_64-manylinux_2_28", "aarch64": "aarch64-manylinux_2_28"}
NOT_THERE: Final = ("pulumi", "pulumi-aws", "pulumi-gcp", "pulumi-policy")
"""What only a person's machine runs."""
LIMIT_S: Final = 900


def register(app: typer.Typer) -> None:
    app.command("bundle")(bundle)


def bundle(
    fleet: FleetOption = None,
    place: Annotated[
        str, typer.Option("--place", help="Bucket or folder instead of the fleet's bucket, as s3://BUCKET.")
    ] = "",
    machine: Annotated[str, typer.Option("--machine", help="Processor of the control host.")] = "x86_64",
    python: Annotated[str, typer.Option("--python", help="Python of its image.")] = "3.11",
    dependencies: Annotated[
        bool,
        typer.Option("--dependencies/--no-dependencies", help="Whether the packages of uv.lock go in, or are there."),
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="JSON to stdout.")] = False,
) -> None:
    """Pack this clone and the packages of uv.lock, each proven by its hash, put it into the bucket, print the digest.

    `control.bundle` of the settings and `gpufleet upgrade --to` take that digest.
    """
    if machine not in PLATFORMS:
        raise AppError(f"--machine {machine}: is unknown; choose {' or '.join(PLATFORMS)}", Code.WRONG_USE)
    url = place or _bucket(fleet)
    target = open_place(url)
    with tempfile.TemporaryDirectory(prefix="gpufleet-bundle-") as folder:
        packages = _packages(Path(folder), PLATFORMS[machine], python) if dependencies else None
        try:
            made = bundles.build(ROOT, packages, Path(folder, bundles.ARCHIVE_NAME))
            target.writer.put_file(target.key(bundles.key(made.sha256)), made.path)
        except (bundles.BundleError, OSError) as error:
            raise AppError(f"the bundle could not be made or put into {url}: {error}") from error
    STDERR.print(f"{url}: {made.files} files, {made.bytes:,} bytes", highlight=False)
    if as_json:
        print_json({"version": 1, "sha256": made.sha256, "bytes": made.bytes, "files": made.files})
    else:
        STDOUT.print(made.sha256, highlight=False, soft_wrap=True)


def _bucket(fleet: list[str] | None) -> str:
    documents = load(fleet)
    if len(documents) != 1:
        raise AppError("name one --fleet, or a --place: a bundle goes into one bucket", Code.WRONG_USE)
    return documents[0].bucket


def _packages(folder: Path, platform: str, python: str) -> Path:
    """The locked packages, installed into a folder for another machine; each file by the hash that uv.lock has."""
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path.home() / ".cache" / "gpu-fleet" / "bin"))
    if uv is None:
        raise AppError("uv is not on PATH, which installs the locked packages: run `make setup`, or put it there")
    requirements, into = folder / "requirements.txt", folder / "packages"
    left_out = [word for name in NOT_THERE for word in ("--prune", name)]
    export = [uv, "export", "--frozen", "--no-dev", "--no-emit-project", "--quiet", *left_out]
    _run([*export, "--output-file", str(requirements)])
    install = [uv, "pip", "install", "--quiet", "--require-hashes", "--no-deps", "--only-binary", ":all:"]
    chosen = ["--python-platform", platform, "--python-version", python, "--target", str(into)]
    _run([*install, *chosen, "--requirements", str(requirements)])
    return into


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise AppError(f"{command[0]} {command[1]}: not done in {LIMIT_S} s") from error
    if done.returncode != 0:
        raise AppError(f"{command[0]} {command[1]}: {done.stderr.strip()[-2000:]}")
