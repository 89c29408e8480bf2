"""A provider for plans alone: it takes every type and property of the real one, and makes nothing.

The local provider refuses what it does not model, since it would not make it. A plan is judged by its inputs, so
there a type or property that is not modelled is passed on as the program wrote it.
"""

from __future__ import annotations

from typing import Any

import grpc
from pulumi.runtime.proto import provider_pb2 as pb

from localcloud.provider.checks import BOOKKEEPING
from localcloud.provider.server import Provider
from localcloud.provider.wire import from_struct, to_struct


class Planner(Provider):
    """Answers previews of new stacks."""

    def Check(self, request: Any, context: grpc.ServicerContext) -> Any:
        resource = self._package.resources.get(request.type)
        new_inputs = from_struct(request.news)
        new_inputs.pop(BOOKKEEPING, None)
        if resource is not None:
            if new_inputs.keys() <= resource.modelled:
                return super().Check(request, context)
            self._add_default_tags(resource, new_inputs)
        return pb.CheckResponse(inputs=to_struct(new_inputs))

    def Create(self, request: Any, context: grpc.ServicerContext) -> Any:
        if not request.preview:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"{request.urn}: this provider makes plans alone")
        if request.type in self._package.resources:
            return super().Create(request, context)
        return pb.CreateResponse(id="", properties=request.properties)
