"""Objects in S3."""

import boto3
from botocore.exceptions import BotoCoreError, ClientError


def read_object(bucket: str, key: str) -> bytes:
    """Read an object. Raises OSError with the message from AWS (FileNotFoundError: no such object)."""
    try:
        return boto3.client("s3").get_object(Bucket=bucket, Key=key)["Body"].read()
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        if code in ("NoSuchKey", "NoSuchBucket", "404"):
            raise FileNotFoundError(f"no such object ({code})") from error
        raise OSError(f"S3 refused: {error}") from error
    except BotoCoreError as error:
        raise OSError(f"S3 could not be read: {error}") from error


def write_object(bucket: str, key: str, body: bytes) -> None:
    """Write a complete object. Raises OSError with the message from AWS."""
    try:
        boto3.client("s3").put_object(Bucket=bucket, Key=key, Body=body)
    except (BotoCoreError, ClientError) as error:
        raise OSError(f"S3 could not be written: {error}") from error
