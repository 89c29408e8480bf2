"""The layout of an environment's bucket, and who writes each part."""

from typing import Final

PUBLISHED: Final = ("agents/", "approvals/", "control/", "fleet/", "models/")
"""Prefixes of objects that machines trust. No machine may write them; `pulumi up` and operators do."""
BACKUPS: Final = "backups/"
"""Prefix of the ledger backups that the control host writes."""
POINTER: Final = "/latest.json"
"""Suffix of the objects below `BACKUPS` that are overwritten each time. All others are written once."""
BUNDLES: Final = "control/bundles/"
"""Prefix of the bundles from which control hosts and routers are installed."""
ROUTER_POLICY: Final = "fleet/router.json"
"""The routing policy. It is stored next to the fleet document, which all routers read too."""
