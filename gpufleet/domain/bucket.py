"""What lies where in an environment's bucket, and who writes it."""

from typing import Final

PUBLISHED: Final = ("agents/", "approvals/", "control/", "fleet/", "models/")
"""What machines obey, so no machine writes it: `pulumi up` and people do."""
BACKUPS: Final = "backups/"
"""What the control host writes: copies of its ledger."""
POINTER: Final = "/latest.json"
"""How the name of an object below `BACKUPS` ends that is written again each time; the others are written once."""
BUNDLES: Final = "control/bundles/"
"""What control host and routers are installed from."""
ROUTER_POLICY: Final = "fleet/router.json"
"""Who goes where; beside the fleet document, which every router reads as well."""
