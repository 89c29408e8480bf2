"""Answers recorded from real AWS accounts (`tests/recorded`): read from their files, given by a client."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from botocore.exceptions import ClientError

from gpufleet.clouds.aws.calls import AwsCalls

AWS: Final = Path(__file__).parents[1] / "recorded" / "aws"
SENTENCES: Final[Sequence[Mapping[str, Any]]] = json.loads((AWS.parent / "sentences.json").read_text())


def named(pattern: str) -> list[str]:
    """Names of the recorded files that match."""
    return sorted(path.relative_to(AWS).as_posix() for path in AWS.glob(pattern))


def placebo(name: str) -> Mapping[str, Any]:
    """What boto3 answered, as Cloud Custodian recorded it: moments are objects in UTC."""
    return json.loads((AWS / name).read_text(), object_hook=_moment)["data"]


def _moment(found: dict[str, Any]) -> Any:
    if found.get("__class__") != "datetime":
        return found
    parts = ("year", "month", "day", "hour", "minute", "second", "microsecond")
    return datetime(*(found[part] for part in parts), tzinfo=UTC)


class Client:
    """Gives one answer to every call of a service; one with an `Error` is a refusal."""

    def __init__(self, answer: Mapping[str, Any]) -> None:
        self._answer = answer

    def get_paginator(self, operation: str) -> "Client":
        del operation
        return self

    def paginate(self, **_: Any) -> Iterator[Mapping[str, Any]]:
        yield self._call()

    def __getattr__(self, operation: str) -> Any:
        return self._call

    def _call(self, **_: Any) -> Mapping[str, Any]:
        if "Error" in self._answer:
            raise ClientError(self._answer, "call")  # pyright: ignore[reportArgumentType]
        return self._answer


def calls(answer: Mapping[str, Any], region: str = "us-east-1") -> AwsCalls:
    """Calls of a region that are all answered with this."""
    return AwsCalls(region, lambda _: Client(answer))
