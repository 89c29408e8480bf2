"""Faults of the bucket: a document that nobody can read."""

from tests.chaos.fault import Memory, Step
from tests.chaos.stage import Stage
from tests.fixtures.e2e.embedded_cloud import BUCKET


def spoil(key: str) -> Step:
    """A document becomes nonsense."""

    def step(stage: Stage, memory: Memory) -> None:
        memory.held[key] = stage.cloud.client("s3").get_object(Bucket=BUCKET, Key=key)["Body"].read()
        stage.cloud.put_bytes(key, b"{ nonsense")

    return step


def mend(stage: Stage, memory: Memory) -> None:
    """Each is again what it was, and who mended it says so: boots that failed for it may be tried again."""
    for key, body in memory.held.items():
        stage.cloud.put_bytes(key, body)
    stage.gpufleet("resume", "chat")
