"""Faults of the bucket: documents that cannot be parsed."""

from tests.chaos.fault import Memory, Step
from tests.chaos.testbed import ChaosTestbed
from tests.fixtures.e2e.embedded_cloud import BUCKET


def spoil(key: str) -> Step:
    """Replace a document with invalid content."""

    def step(testbed: ChaosTestbed, memory: Memory) -> None:
        memory.held[key] = testbed.cloud.client("s3").get_object(Bucket=BUCKET, Key=key)["Body"].read()
        testbed.cloud.put_bytes(key, b"{ nonsense")

    return step


def restore(testbed: ChaosTestbed, memory: Memory) -> None:
    """Restore each document and reset failed boots, as an operator does after a repair."""
    for key, body in memory.held.items():
        testbed.cloud.put_bytes(key, body)
    testbed.gpufleet("resume", "chat")
