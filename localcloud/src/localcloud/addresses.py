"""The addresses of the embedded cloud. `docs/contracts.md` is the contract; tests move it to other addresses."""

from dataclasses import dataclass
from typing import Final

ACCOUNT: Final = "000000000000"
REGION: Final = "us-east-1"
ZONES: Final = ("us-east-1a", "us-east-1b", "us-east-1c")
ACCESS_KEY: Final = "local"
"""The name under which `calls` counts this caller; the secret key is the token of the cloud's start."""
METADATA_PORT: Final = 1338


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The addresses of one embedded cloud, all inside 127.0.0.0/8."""

    network: str = "127.16"
    """First two numbers of every address."""

    api_port: int = 4566
    google_port: int = 4567
    slack_port: int = 8081

    def __post_init__(self) -> None:
        first, _, second = self.network.partition(".")
        if first != "127" or not second.isdigit() or not 0 <= int(second) <= 255:
            raise ValueError(f"network {self.network!r} is not on loopback; use 127.N with N from 0 to 255")

    @property
    def api_host(self) -> str:
        return f"{self.network}.0.2"

    @property
    def api_url(self) -> str:
        return f"http://{self.api_host}:{self.api_port}"

    @property
    def google_host(self) -> str:
        return f"{self.network}.0.4"

    @property
    def google_url(self) -> str:
        return f"http://{self.google_host}:{self.google_port}"

    @property
    def google_cidr(self) -> str:
        """The range of the subnetworks of the embedded Google Cloud."""
        return f"{self.network}.64.0/18"

    @property
    def slack_host(self) -> str:
        return f"{self.network}.0.3"

    @property
    def slack_url(self) -> str:
        return f"http://{self.slack_host}:{self.slack_port}"

    @property
    def vpc_cidr(self) -> str:
        return f"{self.network}.0.0/16"
