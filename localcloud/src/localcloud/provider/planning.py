"""A provider for previews only: it accepts every type and property of the real one, and creates nothing.

The local provider refuses types and properties that it does not model, since it could not create them. Policies check
the inputs of a preview, so here the inputs of such types pass unchanged.
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
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"{request.urn}: this provider only supports previews")
        if request.type in self._package.resources:
            return super().Create(request, context)
        return pb.CreateResponse(id="", properties=request.properties)
