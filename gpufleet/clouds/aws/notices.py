"""The queue of spot notices: a hint that a pass of the spot watchdog is worth it now. Nothing depends on it."""

from typing import Final

from gpufleet.clouds.aws.calls import AwsCalls
from gpufleet.domain.activity import CloudError

WAIT_SECONDS: Final = 20
"""SQS holds a call open for that long at most; it is under the clients' read timeout."""
MOST: Final = 10
ABSENT: Final = frozenset({"AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist"})


def queue_name(environment: str) -> str:
    """As the environment's stack names it."""
    return f"gpu-fleet-{environment}-notices"


class AwsNotices:
    """Notices of one environment's queue; they tell of any spot instance of the account and region."""

    def __init__(self, calls: AwsCalls, environment: str) -> None:
        self._calls = calls
        self._name = queue_name(environment)
        self._url: str | None = None

    def there(self) -> bool:
        """Whether this environment has a queue. Raises CloudError when that cannot be told."""
        try:
            self._url = str(self._calls.one("sqs", "get_queue_url", QueueName=self._name)["QueueUrl"])
        except CloudError as error:
            if error.code in ABSENT:
                return False
            raise
        return True

    def wait(self, seconds: int = WAIT_SECONDS) -> int:
        """How many notices came within that time; each is told once. Raises CloudError."""
        if self._url is None and not self.there():
            return 0
        answer = self._calls.one(
            "sqs", "receive_message", QueueUrl=self._url, MaxNumberOfMessages=MOST, WaitTimeSeconds=seconds
        )
        found = answer.get("Messages", [])
        for message in found:
            self._calls.one("sqs", "delete_message", QueueUrl=self._url, ReceiptHandle=message["ReceiptHandle"])
        return len(found)
