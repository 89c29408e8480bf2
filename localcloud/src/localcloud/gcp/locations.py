"""The one project, region and zones of the embedded Google Cloud. `docs/contracts.md` is the contract."""

from typing import Final

PROJECT: Final = "gpu-fleet-local"
PROJECT_NUMBER: Final = "100000000001"
REGION: Final = "us-central1"
ZONES: Final = ("us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f")
METADATA_PORT: Final = 1338
DEFAULT_ACCOUNT: Final = f"{PROJECT_NUMBER}-compute@developer.gserviceaccount.com"
