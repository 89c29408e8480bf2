"""Rules on access: to instances, their ports, disks, templates, buckets, secrets and permissions."""

from typing import Final

from policies import exposure, ingress, machines, permissions, references, storage, templates, user_data

RULES: Final = (
    *exposure.RULES,
    *ingress.RULES,
    *machines.RULES,
    *templates.RULES,
    *references.RULES,
    *storage.RULES,
    *user_data.RULES,
    *permissions.RULES,
)
