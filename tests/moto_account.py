"""An AWS account of moto on loopback: for tests of calls, where neither machines nor capacity are looked at."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import httpx
from moto.server import ThreadedMotoServer


@contextmanager
def moto_account() -> Generator[str]:
    """The URL of its APIs. The account is empty: moto keeps what was made in the process, beyond a server's end."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    try:
        empty(url)
        yield url
    finally:
        server.stop()


def empty(url: str) -> None:
    """Forget all that was made."""
    httpx.post(f"{url}/moto-api/reset").raise_for_status()


def launched(ec2: Any, machine_type: str, **tags: str) -> str:
    """The id of a new instance with these tags. `ec2`: a client of the account."""
    image = ec2.describe_images()["Images"][0]["ImageId"]
    pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
    tagged = [{"ResourceType": "instance", "Tags": pairs}] if pairs else []
    made = ec2.run_instances(
        ImageId=image, InstanceType=machine_type, MinCount=1, MaxCount=1, TagSpecifications=tagged
    )
    return made["Instances"][0]["InstanceId"]
