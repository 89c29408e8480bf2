"""The queue of spot notices. A notice triggers an early run of the spot watchdog; no function depends on it."""

from typing import Final

from gpufleet.clouds.aws.calls import AwsCalls
from gpufleet.domain.activity import CloudError

WAIT_SECONDS: Final = 20
"""Maximum wait time of an SQS call. It is shorter than the clients' read timeout."""
MAX_MESSAGES: Final = 10
ABSENT: Final = frozenset({"AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist"})


def queue_name(environment: str) -> str:
    """Name of the queue that the environment's stack creates."""
    return f"gpu-fleet-{environment}-notices"


class AwsNotices:
    """The notice queue of one environment. It receives notices for all spot instances of the account and region."""

    def __init__(self, calls: AwsCalls, environment: str) -> None:
        self._calls = calls
        self._name = queue_name(environment)
        self._url: str | None = None

    def there(self) -> bool:
        """Whether this environment has a queue. Raises CloudError if the request fails."""
        try:
            self._url = str(self._calls.one("sqs", "get_queue_url", QueueName=self._name)["QueueUrl"])
        except CloudError as error:
            if error.code in ABSENT:
                return False
            raise
        return True

    def wait(self, seconds: int = WAIT_SECONDS) -> int:
        """Wait up to `seconds` for notices, delete them, and return their number. Raises CloudError."""
        if self._url is None and not self.there():
            return 0
        answer = self._calls.one(
            "sqs", "receive_message", QueueUrl=self._url, MaxNumberOfMessages=MAX_MESSAGES, WaitTimeSeconds=seconds
        )
        found = answer.get("Messages", [])
        for message in found:
            self._calls.one("sqs", "delete_message", QueueUrl=self._url, ReceiptHandle=message["ReceiptHandle"])
        return len(found)
