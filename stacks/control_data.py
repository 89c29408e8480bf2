"""Boot data of the control host and the routers of an environment."""

from collections.abc import Callable

from gpufleet.domain.model import Cloud
from gpufleet.settings.document import PATH_IN_BUCKET
from gpufleet.settings.environment import ControlHostSettings, Settings
from hosts.control import boot_data
from hosts.control.settings import ControlSettings, Role
from stacks.pools import bucket_url, secret_place


def of_host(settings: Settings, control: ControlHostSettings) -> Callable[[str], str] | None:
    """Return a function from the device of the data volume to the control host's boot data. None without a bundle."""
    if (sha256 := control.bundle) is None:
        return None
    return lambda volume: _script(settings, _host_settings(settings, control, Role.CONTROL, volume), sha256)


def of_router(settings: Settings, control: ControlHostSettings) -> str | None:
    """Return the boot data of each router. None without a bundle. Raises UserDataError when the cloud would refuse
    the data.
    """
    if control.bundle is None:
        return None
    return _script(settings, _host_settings(settings, control, Role.ROUTER, None), control.bundle)


def _script(settings: Settings, host: ControlSettings, sha256: str) -> str:
    return boot_data.render(host, settings.cloud, settings.region, sha256)


def _host_settings(
    settings: Settings, control: ControlHostSettings, role: Role, volume: str | None
) -> ControlSettings:
    bucket = bucket_url(settings)
    return ControlSettings(
        fleet=f"{bucket}/{PATH_IN_BUCKET}",
        bucket=bucket,
        role=role,
        routes=role is Role.ROUTER or control.routers == 1,
        volume=volume,
        environment={
            "GPUFLEET_ENVIRONMENT": settings.environment,
            **({"AWS_DEFAULT_REGION": settings.region} if settings.cloud is Cloud.AWS else {}),
        },
        secrets=_secrets(settings, control) if role is Role.CONTROL else {},
    )


def _secrets(settings: Settings, control: ControlHostSettings) -> dict[str, str]:
    """Return the location of each secret. Boot data contain names only; the host reads the values with its own
    role.
    """
    return {variable: secret_place(settings, name) for variable, name in sorted(control.secrets.items())}
