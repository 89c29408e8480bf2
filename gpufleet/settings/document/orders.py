"""The keys of orders to node agents, and the allowed names of an environment's secrets."""

from gpufleet.domain.model import Cloud
from gpufleet.domain.rsa import KeyFormError, public_key
from gpufleet.settings.document.fields import Strict


class OrderKeys(Strict):
    """The keys that sign orders to the environment's node agents, and verify them."""

    private_key: str
    """The secret with the private key of the control host: its name in settings, its reference
    (`ssm:NAME`, `gcp-secret:projects/P/secrets/S`) in the fleet document."""
    public_keys: tuple[str, ...]
    """Keys with which agents verify signatures, as PEM or base64: one, or two during a rotation."""

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """Fingerprints of the public keys. Invalid keys are omitted: agents do not start with them."""
        found: list[str] = []
        for text in self.public_keys:
            try:
                found.append(public_key(text).fingerprint)
            except KeyFormError:
                continue
        return tuple(found)


def secret_names_begin(cloud: Cloud, environment: str) -> str:
    """Return the prefix of an environment's secret names; readers accept only secrets with it."""
    match cloud:
        case Cloud.AWS:
            return f"/gpu-fleet/{environment}/"
        case Cloud.GCP:
            return f"gpu-fleet-{environment}-"


def is_of_environment(place: str, cloud: Cloud, environment: str, account: str) -> bool:
    """Return whether a secret reference belongs to the environment. `account`: AWS account or Google project."""
    begin = secret_names_begin(cloud, environment)
    match cloud:
        case Cloud.AWS:
            return place.startswith(f"ssm:{begin}")
        case Cloud.GCP:
            return place.startswith(f"gcp-secret:projects/{account}/secrets/{begin}")
