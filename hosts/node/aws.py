"""The cloud interface of an EC2 instance."""

from datetime import datetime
from urllib.parse import urlsplit

from gpufleet.clouds.aws import signed
from gpufleet.clouds.aws.metadata import CredentialChain, Ec2Metadata
from hosts.node.ports import CloudNotice, Notice
from serving.cache.store import ObjectStore


class AwsServices:
    """The EC2 metadata, SSM and S3 calls that the instance needs."""

    def __init__(self, metadata: Ec2Metadata, region: str) -> None:
        """Read the constant metadata. Raises MetadataError."""
        self._metadata = metadata
        self._session = signed.session(region, CredentialChain(metadata=metadata))
        self.instance_id = metadata.need("meta-data/instance-id")
        self.address = metadata.need("meta-data/local-ipv4")
        self.machine_type = metadata.need("meta-data/instance-type").strip()

    def notices(self) -> list[CloudNotice]:
        """Return the notices of EC2 and of the Auto Scaling group that apply now. Raises OSError."""
        found: list[CloudNotice] = []
        action = self._metadata.document("meta-data/spot/instance-action")
        if action is not None:
            found.append(CloudNotice(kind=Notice.PREEMPTION, at=_time(action.get("time"))))
        if (self._metadata.get("meta-data/autoscaling/target-lifecycle-state") or "").strip() == "Terminated":
            found.append(CloudNotice(kind=Notice.TERMINATION))
        if self._metadata.document("meta-data/events/recommendations/rebalance") is not None:
            found.append(CloudNotice(kind=Notice.REBALANCE))
        return found

    def secret(self, where: str) -> str:
        """Read the secret `ssm:/name`. Raises OSError."""
        kind, _, name = where.partition(":")
        if kind != "ssm" or not name:
            raise OSError(f"secret {where!r}: on AWS it must be ssm:/name")
        return signed.get_parameter(self._session, name)

    def store(self, bucket: str) -> ObjectStore:
        """Open the models' bucket `s3://name`. Raises OSError."""
        parts = urlsplit(bucket)
        if parts.scheme != "s3":
            raise OSError(f"bucket {bucket!r}: on AWS it must be s3://name")
        return signed.S3Store(self._session, parts.netloc)


def _time(text: object) -> datetime | None:
    """Parse the time of a notice. None if it is not valid: the agent then uses its own deadline."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo is not None else None
