"""What `pulumi up` runs."""

import pulumi

from stacks import aws
from stacks.settings import SettingsError, load

try:
    settings = load(pulumi.Config(), pulumi.get_stack())
except SettingsError as error:
    raise pulumi.RunError(str(error)) from error
aws.deploy(settings)
