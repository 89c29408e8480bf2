"""Faults of the bucket: documents that cannot be parsed."""

from tests.chaos.fault import Memory, Step
from tests.chaos.stage import Stage
from tests.fixtures.e2e.embedded_cloud import BUCKET


def spoil(key: str) -> Step:
    """Replace a document with invalid content."""

    def step(stage: Stage, memory: Memory) -> None:
        memory.held[key] = stage.cloud.client("s3").get_object(Bucket=BUCKET, Key=key)["Body"].read()
        stage.cloud.put_bytes(key, b"{ nonsense")

    return step


def restore(stage: Stage, memory: Memory) -> None:
    """Restore each document and reset failed boots, as an operator does after a repair."""
    for key, body in memory.held.items():
        stage.cloud.put_bytes(key, body)
    stage.gpufleet("resume", "chat")
