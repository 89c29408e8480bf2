"""How instances end, and the reasons that DescribeInstances states. docs/cloud-answers.md lists the recorded ones."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Final

from moto.ec2.models.instances import StateReason

_USER: Final = "User initiated"


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Why an instance stops or ends."""

    code: str = ""
    """StateReason.Code. Empty: EC2 states no reason."""
    message: str = ""
    transition: str = ""
    """StateTransitionReason, without its time."""
    is_timed: bool = False
    """Whether StateTransitionReason contains the time: only for ends that an API call requested."""

    @property
    def state_reason(self) -> StateReason:
        """As DescribeInstances shows it; empty if EC2 states no reason."""
        return StateReason(f"{self.code}: {self.message}", self.code) if self.code else StateReason()

    def transition_reason(self, now: datetime) -> str:
        """StateTransitionReason of an end at this time."""
        return f"{self.transition} ({now:%Y-%m-%d %H:%M:%S} GMT)" if self.is_timed else self.transition


def by_server(code: str, message: str) -> End:
    """An end that no call requested: its transition reason is the plain code, without a time."""
    return End(code=code, message=message, transition=code)


BY_PERSON: Final = End(
    code="Client.UserInitiatedShutdown", message="User initiated shutdown", transition=_USER, is_timed=True
)
BY_ITSELF: Final = by_server("Client.InstanceInitiatedShutdown", "Instance initiated shutdown")
SPOT_TAKEN: Final = by_server("Server.SpotInstanceTermination", "Spot instance termination")
NOT_LAUNCHED: Final = by_server("Server.InternalError", "Internal error on launch")
BLOCK_OVER: Final = by_server("Server.CapacityBlockEnded", "Capacity Block ends")

CHOSEN: Final[Mapping[str, End]] = MappingProxyType(
    {
        "person": BY_PERSON,
        "account": End(code=BY_PERSON.code, message=BY_PERSON.message, transition=_USER),
        "unstated": End(),
        "spot": SPOT_TAKEN,
        "server": NOT_LAUNCHED,
        "key": by_server("Client.InvalidKMSKey.InvalidState", "The KMS key provided is in an incorrect state"),
        "volumes": by_server("Client.VolumeLimitExceeded", "Volume limit exceeded"),
    }
)
"""Ends that the admin API can request. `account`: AWS acts for the account, without a person."""
