"""The keys of orders to node agents, and where an environment's secrets may lie."""

from gpufleet.domain.model import Cloud
from gpufleet.domain.rsa import KeyFormError, public_key
from gpufleet.settings.document.fields import Strict


class OrderKeys(Strict):
    """Who may give orders to the environment's node agents."""

    private_key: str
    """The secret that holds the key which the control host signs with: its name in settings, its place
    (`ssm:NAME`, `gcp-secret:projects/P/secrets/S`) in the fleet document."""
    public_keys: tuple[str, ...]
    """What agents check signatures with, as PEM or base64: one key, or two while they change."""

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """Of the public keys; one that is none is left out: agents do not start with it."""
        found: list[str] = []
        for text in self.public_keys:
            try:
                found.append(public_key(text).fingerprint)
            except KeyFormError:
                continue
        return tuple(found)


def secret_names_begin(cloud: Cloud, environment: str) -> str:
    """How the names of an environment's secrets begin: whoever reads one asks for no other."""
    match cloud:
        case Cloud.AWS:
            return f"/gpu-fleet/{environment}/"
        case Cloud.GCP:
            return f"gpu-fleet-{environment}-"


def is_of_environment(place: str, cloud: Cloud, environment: str, account: str) -> bool:
    """Whether a secret's place is one of the environment's own. `account`: of AWS, or Google's project."""
    begin = secret_names_begin(cloud, environment)
    match cloud:
        case Cloud.AWS:
            return place.startswith(f"ssm:{begin}")
        case Cloud.GCP:
            return place.startswith(f"gcp-secret:projects/{account}/secrets/{begin}")
