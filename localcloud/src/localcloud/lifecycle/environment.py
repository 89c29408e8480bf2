"""The environment of local commands: credentials and endpoints of the embedded cloud, none of a real cloud."""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gpufleet.domain.model import Cloud
from gpufleet.toolchain.folders import Folders
from localcloud import addresses
from localcloud.callers import VARIABLE, read_token
from localcloud.gcp import locations as google
from localcloud.lifecycle.selected_cloud import FLEET_URLS, chosen
from localcloud.lifecycle.waiting import LocalError
from localcloud.time_scale import VARIABLE as TIME_SCALE

MARK: Final = "GPUFLEET_LOCAL"
"""The variable that marks all processes of `gpufleet local up` and the demo, so that they can be found."""
PASSPHRASE: Final = "local"  # noqa: S105 - not a secret: it protects nothing but the embedded cloud's own state
NO_TOKEN: Final = "the-embedded-cloud-does-not-run"  # noqa: S105 - stands for one
STRIPPED_PREFIXES: Final = (
    "ALIBABA_",
    "ARM_",
    "AWS_",
    "AZURE_",
    "BOTO_",
    "CLOUDSDK_",
    "GCE_",
    "GCLOUD_",
    "GCP_",
    "GOOGLE_",
    "GPUFLEET_",
    "PULUMI_",
    "SLACK_",
)
STRIPPED_NAMES: Final = frozenset(
    {
        "ALL_PROXY",
        "DATABASE_URL",
        "HTTPS_PROXY",
        "HTTP_PROXY",
        "KUBECONFIG",
        "PGPASSWORD",
        "PYTHONHOME",
        "PYTHONPATH",
        "VIRTUAL_ENV",
    }
)
KEPT: Final = frozenset({"GPUFLEET_CACHE", TIME_SCALE})


def is_stripped(name: str) -> bool:
    """Whether a variable could direct local commands to a real cloud, account or another Python."""
    upper = name.upper()
    return name not in KEPT and (upper in STRIPPED_NAMES or upper.startswith(STRIPPED_PREFIXES))


def credentials_of(folders: Folders) -> dict[str, str]:
    """The variables with the token of the cloud that runs now; each start makes a new one."""
    token = read_token(folders.cloud) or NO_TOKEN
    return {
        "AWS_ACCESS_KEY_ID": addresses.ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": token,
        "GPUFLEET_SLACK_TOKEN": f"xoxb-{token}",
        VARIABLE: token,
    }


def token_of(folders: Folders) -> str:
    """The token of the cloud that runs now. Raises LocalError."""
    token = read_token(folders.cloud)
    if token is None:
        raise LocalError(f"no embedded cloud of {folders.root} runs: run `gpufleet local up`")
    return token


def settings_of(folders: Folders, pulumi: Path, cloud: Cloud | None = None) -> dict[str, str]:
    """The variables that select an embedded cloud, without PATH. None: the cloud that was selected last."""
    return credentials_of(folders) | {
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_DEFAULT_REGION": addresses.REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ENDPOINT_URL": addresses.Places().api_url,
        "AWS_REGION": addresses.REGION,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "CLOUDSDK_CONFIG": os.devnull,
        "GOOGLE_APPLICATION_CREDENTIALS": os.devnull,
        "GOOGLE_CLOUD_PROJECT": google.PROJECT,
        "GPUFLEET_COMPUTE_ENDPOINT": addresses.Places().google_url,
        "GPUFLEET_FLEET": FLEET_URLS[cloud or chosen(folders)],
        "GPUFLEET_LOCAL_ORDER_KEY": str(folders.order_key),
        "GPUFLEET_SECRETMANAGER_ENDPOINT": addresses.Places().google_url,
        "STORAGE_EMULATOR_HOST": addresses.Places().google_url,
        "GPUFLEET_SLACK_API_URL": f"{addresses.Places().slack_url}/api/",
        "PULUMI_BACKEND_URL": folders.pulumi_state.as_uri(),
        "PULUMI_CONFIG_PASSPHRASE": PASSPHRASE,
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        "PULUMI_HOME": str(folders.pulumi_home),
        "PULUMI_IGNORE_AMBIENT_PLUGINS": "true",
        "PULUMI_PYTHON_CMD": str(folders.python),
        "PULUMI_SKIP_UPDATE_CHECK": "true",
    }


def path_of(folders: Folders, pulumi: Path, before: str) -> str:
    """PATH with the clone's commands, the Pulumi CLI and uv in front."""
    ours = (str(folders.python.parent), str(pulumi.parent), str(folders.tools))
    return os.pathsep.join(dict.fromkeys([*ours, *(f for f in before.split(os.pathsep) if f)]))


def local_environment(
    folders: Folders, pulumi: Path, base: Mapping[str, str], cloud: Cloud | None = None
) -> dict[str, str]:
    """The whole environment for a local command, from the caller's. None: the cloud that was chosen last."""
    kept = {name: value for name, value in base.items() if not is_stripped(name)}
    return (
        kept | settings_of(folders, pulumi, cloud) | {"PATH": path_of(folders, pulumi, base.get("PATH", os.defpath))}
    )


def enter(environment: Mapping[str, str]) -> None:
    """Replace the environment of this process: libraries read their settings from it."""
    os.environ.clear()
    os.environ.update(environment)


def marked(environment: Mapping[str, str], folders: Folders) -> dict[str, str]:
    """The environment with the mark by which `local down` finds the process."""
    return {**environment, MARK: str(folders.local)}


def exports(folders: Folders, pulumi: Path, base: Mapping[str, str]) -> str:
    """Lines for `eval "$(gpufleet local env)"`."""
    settings = settings_of(folders, pulumi)
    stripped = sorted(name for name in base if is_stripped(name) and name not in settings and name.isidentifier())
    lines = [f"unset {name}" for name in stripped]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in sorted(settings.items())]
    ours = os.pathsep.join(path_of(folders, pulumi, "").split(os.pathsep))
    return "\n".join([*lines, f'export PATH={shlex.quote(ours)}:"$PATH"']) + "\n"


def is_ours(environment: Mapping[str, str], folders: Folders) -> bool:
    """Whether a process with this environment belongs to this clone's embedded cloud."""
    root = environment.get("GPUFLEET_ROOT", "")
    return environment.get(MARK) == str(folders.local) or root.startswith(f"{folders.machines}/")
