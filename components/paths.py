"""Names of objects in an environment's bucket that rights are about. Tests compare them with who reads them."""

from typing import Final

from gpufleet.settings.document import PATH_IN_BUCKET

ROUTER_POLICY: Final = "fleet/router.json"
ROUTER_OBJECTS: Final = (PATH_IN_BUCKET, ROUTER_POLICY)
"""What a router reads again and again."""
BUNDLES: Final = "control/bundles/"
"""What control host and routers are installed from."""
