"""The entry point of `pulumi preview --policy-pack policies` and `pulumi policy analyze`."""

import os
from datetime import UTC, datetime

from pulumi_policy import Policy, PolicyPack

from policies.context import ContextError, from_config
from policies.engine import policies, unreadable
from policies.settings import config_of


def _judged() -> list[Policy]:
    try:
        context = from_config(config_of(os.environ), datetime.now(UTC).date())
    except ContextError as error:
        # operators would not see the message of a pack that fails to start
        return [unreadable(str(error))]
    return policies(context)


PolicyPack(name="gpu-fleet", policies=_judged())
