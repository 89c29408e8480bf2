"""All that the local AWS provider models."""

from __future__ import annotations

from localcloud.provider.aws import autoscaling, launch_template
from localcloud.provider.resource import Function, Resource
from localcloud.provider.server import Package

_RESOURCES: tuple[type[Resource], ...] = (
    autoscaling.Group,
    autoscaling.LifecycleHook,
    launch_template.LaunchTemplate,
)
_FUNCTIONS: dict[str, Function] = {}

AWS = Package(
    name="aws",
    distribution="pulumi-aws",
    resources={r.token: r() for r in _RESOURCES},
    functions=_FUNCTIONS,
)
"""The package `aws` as the engine sees it."""
