"""The machine images of the emulated AWS, and the public parameters with the id of the newest one."""

from typing import Any, Final

from moto.core.utils import utcnow
from moto.ec2.models import EC2Backend
from moto.ssm.models import Parameter, ssm_backends

from localcloud.addresses import ACCOUNT, REGION

DLAMI: Final = "ami-0d1a0000000000001"
DLAMI_PARAMETERS: Final = (
    "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id",
    "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id",
    "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-amazon-linux-2023/latest/ami-id",
)


def add_images(ec2: EC2Backend) -> None:
    """Register the stand-in of the Deep Learning AMI and the public parameters that point to it."""
    image = ec2.register_image(name="Deep Learning Base OSS Nvidia Driver GPU AMI (stand-in)", description="")
    del ec2.amis[image.id]
    image.id, image.owner_id = DLAMI, "amazon"
    image.launch_permissions.append({"Group": "all"})
    ec2.amis[DLAMI] = image
    ssm = ssm_backends[ACCOUNT][REGION]
    for name in DLAMI_PARAMETERS:
        # written directly: PutParameter refuses names under /aws
        ssm._parameters[name].append(_parameter(name))  # pyright: ignore[reportPrivateUsage]


def _parameter(name: str) -> Any:
    return Parameter(
        account_id=ACCOUNT,
        name=name,
        value=DLAMI,
        parameter_type="String",
        description="",
        allowed_pattern=None,
        keyid=None,
        last_modified_date=utcnow(),
        version=1,
        data_type="aws:ec2:image",
        labels=[],
    )
