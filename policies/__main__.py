"""What `pulumi preview --policy-pack policies` runs."""

import json
import os
from datetime import UTC, datetime

from pulumi_policy import PolicyPack

from policies.context import from_config
from policies.rules import policies

# the engine gives the stack's configuration to the pack's process, and nothing else of the program
CONFIG = json.loads(os.environ.get("PULUMI_CONFIG") or "{}")

PolicyPack(name="gpu-fleet", policies=policies(from_config(CONFIG, datetime.now(UTC).date())))
