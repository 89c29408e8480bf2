"""The provider's side of the engine's protocol, independent of clouds and types."""

from __future__ import annotations

import importlib.metadata
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import any_pb2, empty_pb2, struct_pb2
from google.rpc import status_pb2  # pyright: ignore[reportMissingTypeStubs]
from pulumi.runtime.proto import plugin_pb2, provider_pb2_grpc
from pulumi.runtime.proto import provider_pb2 as pb

from localcloud.provider.checks import BOOKKEEPING, check
from localcloud.provider.difference import as_given, changed_keys, differences
from localcloud.provider.errors import CancelledError, Failure, NotReadyError, ProviderError
from localcloud.provider.resource import Change, Function, Resource
from localcloud.provider.schema import Schema
from localcloud.provider.session import Cloud, Session, environment
from localcloud.provider.wire import UNKNOWN, Properties, from_struct, to_struct

MARK = "__local"
"""Output that every resource made by this provider carries; one without it belongs to a real account."""

_DEFAULT_LIMIT_S = 600.0
_FOREIGN = (
    "{urn}: this resource was not made by the local provider, so its state belongs to a real account and is left "
    "alone. Use a stack of the embedded cloud (`{package}-local`)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """What one plugin serves: the Pulumi package's name, its types and its functions.

    Attributes:
        open_session: reads the provider's arguments and the environment (ValueError); the path is the program's.
        errors: what the cloud's clients raise that a user can do something about.
    """

    name: str
    distribution: str
    resources: Mapping[str, Resource]
    functions: Mapping[str, Function]
    open_session: Callable[[Properties, Mapping[str, str], Path], Session]
    errors: tuple[type[Exception], ...] = ()

    @property
    def version(self) -> str:
        """The version of the installed Python package, which the engine asks for."""
        return importlib.metadata.version(self.distribution)


class _AbortError(Exception):
    """Ends a request with a message for the user."""

    def __init__(self, message: str, code: grpc.StatusCode = grpc.StatusCode.UNKNOWN) -> None:
        super().__init__(message)
        self.code = code


class Provider(provider_pb2_grpc.ResourceProviderServicer):
    """One provider resource of a program: configured once; it checks, compares and changes resources."""

    def __init__(self, package: Package, schema: Schema) -> None:
        self._package = package
        self._schema = schema
        self._foreseen = (NotReadyError, ProviderError, ValueError, OSError, *package.errors)
        self._session: Session | None = None
        self._lock = threading.Lock()

    # -- the plugin itself -------------------------------------------------------------------------------------

    def Handshake(self, request: Any, context: grpc.ServicerContext) -> Any:
        return pb.ProviderHandshakeResponse(accept_secrets=False, accept_resources=False, accept_outputs=False)

    def Attach(self, request: Any, context: grpc.ServicerContext) -> Any:
        return empty_pb2.Empty()

    def GetPluginInfo(self, request: Any, context: grpc.ServicerContext) -> Any:
        return plugin_pb2.PluginInfo(version=self._package.version)

    def Cancel(self, request: Any, context: grpc.ServicerContext) -> Any:
        if self._session is not None:
            self._session.cancelled.set()
        return empty_pb2.Empty()

    def CheckConfig(self, request: Any, context: grpc.ServicerContext) -> Any:
        arguments = from_struct(request.news)
        if UNKNOWN not in arguments.values():
            try:
                self._open(arguments)
            except ValueError as error:
                return pb.CheckResponse(failures=[pb.CheckFailure(property="", reason=str(error))])
        return pb.CheckResponse(inputs=request.news)

    def DiffConfig(self, request: Any, context: grpc.ServicerContext) -> Any:
        old, new = from_struct(request.old_inputs), from_struct(request.news)
        return _diff_response(old, new, lambda path: path.startswith("region"))

    def Configure(self, request: Any, context: grpc.ServicerContext) -> Any:
        with self._errors_reported(context):
            with self._lock:
                self._session = self._open(from_struct(request.args))
            return pb.ConfigureResponse(
                acceptSecrets=False, supportsPreview=True, acceptResources=False, acceptOutputs=False
            )

    # -- resources ---------------------------------------------------------------------------------------------

    def Check(self, request: Any, context: grpc.ServicerContext) -> Any:
        with self._errors_reported(context):
            new_inputs, old_inputs = from_struct(request.news), from_struct(request.olds)
            resource = self._package.resources.get(request.type)
            if resource is None:
                reason = f"the local provider has no model of {request.type}; it cannot be used in a local stack"
                return pb.CheckResponse(failures=[pb.CheckFailure(property="", reason=reason)])
            new_inputs.pop(BOOKKEEPING, None)
            self._add_default_tags(resource, new_inputs)
            failures = check(resource, self._schema, new_inputs)
            defaults, failure = _named(resource, request, new_inputs, old_inputs)
            failures += failure
            if failures:
                return pb.CheckResponse(
                    failures=[pb.CheckFailure(property=f.path, reason=f.reason) for f in failures]
                )
            return pb.CheckResponse(inputs=to_struct(new_inputs | defaults | {BOOKKEEPING: sorted(defaults)}))

    def Diff(self, request: Any, context: grpc.ServicerContext) -> Any:
        with self._errors_reported(context):
            resource = self._resource(request.type)
            old, new = _inputs(request.old_inputs), _inputs(request.news)
            self._require_own(from_struct(request.olds), request.urn)
            response = _diff_response(old, new, lambda path: resource.replaces(path, new))
            if response.replaces and resource.naming is not None:
                # the provider generates a new name for the replacement, if it generated the old one
                made_up = resource.naming.property in from_struct(request.news).get(BOOKKEEPING, [])
                response.deleteBeforeReplace = not made_up and resource.naming.keeps_name(old, new)
            return response

    def Create(self, request: Any, context: grpc.ServicerContext) -> Any:
        with self._errors_reported(context):
            resource, inputs = self._resource(request.type), _inputs(request.properties)
            if request.preview:
                unknown = dict.fromkeys(self._schema.resources[request.type].outputs - inputs.keys(), UNKNOWN)
                return pb.CreateResponse(
                    id="", properties=to_struct(unknown | inputs | resource.filled_in(inputs) | {MARK: True})
                )
            cloud = self._cloud(inputs, request.timeout)
            ident = resource.create(cloud, inputs)
            problem = self._problem(lambda: resource.after_create(cloud, ident, inputs))
            outputs = self._outputs(resource, cloud, ident, inputs, {})
            if problem is not None:
                _abort_not_ready(context, ident, outputs, inputs, problem)
            return pb.CreateResponse(id=ident, properties=to_struct(outputs))

    def Read(self, request: Any, context: grpc.ServicerContext) -> Any:
        with self._errors_reported(context):
            resource, old, state = (
                self._resource(request.type),
                _inputs(request.inputs),
                from_struct(request.properties),
            )
            if old:
                self._require_own(state, request.urn)
            cloud = self._cloud(old or state, 0)
            live = resource.read(cloud, request.id, state)
            if live is None:
                return pb.ReadResponse(id="")
            outputs = self._finished(resource, cloud, {k: v for k, v in state.items() if k not in live} | live)
            inputs = {k: as_given(v, live.get(k, v)) for k, v in old.items() if live.get(k, v) is not None}
            if not old:
                taken = resource.modelled - resource.completed
                inputs = {k: v for k, v in live.items() if k in taken and v not in (None, [], {})}
            bookkeeping = from_struct(request.inputs).get(BOOKKEEPING, [])
            return pb.ReadResponse(
                id=request.id, properties=to_struct(outputs), inputs=to_struct(inputs | {BOOKKEEPING: bookkeeping})
            )

    def Update(self, request: Any, context: grpc.ServicerContext) -> Any:
        with self._errors_reported(context):
            resource, state = self._resource(request.type), from_struct(request.olds)
            old, new = _inputs(request.old_inputs), _inputs(request.news)
            self._require_own(state, request.urn)
            if request.preview:
                return pb.UpdateResponse(properties=to_struct(self._previewed(resource, old, new, state)))
            cloud = self._cloud(new, request.timeout)
            change = Change(old=old, new=new, keys=changed_keys(old, new), state=state)
            problem = self._problem(lambda: resource.update(cloud, request.id, change))
            outputs = self._outputs(resource, cloud, request.id, new, state)
            if problem is not None:
                _abort_not_ready(context, request.id, outputs, new, problem)
            return pb.UpdateResponse(properties=to_struct(outputs))

    def Delete(self, request: Any, context: grpc.ServicerContext) -> Any:
        with self._errors_reported(context):
            state = from_struct(request.properties)
            self._require_own(state, request.urn)
            resource = self._resource(request.type)
            resource.delete(self._cloud(state, request.timeout), request.id, state)
            return empty_pb2.Empty()

    def Invoke(self, request: Any, context: grpc.ServicerContext) -> Any:
        with self._errors_reported(context):
            function = self._package.functions.get(request.tok)
            if function is None:
                raise _AbortError(f"the local provider has no function {request.tok}", grpc.StatusCode.UNIMPLEMENTED)
            arguments = from_struct(request.args)
            result = function(self._cloud(arguments, 0), arguments)
            response = pb.InvokeResponse()
            getattr(response, "return").CopyFrom(to_struct(result))
            return response

    # -- parts -------------------------------------------------------------------------------------------------

    def _open(self, arguments: Properties) -> Session:
        return self._package.open_session(arguments, environment(), Path.cwd())

    @contextmanager
    def _errors_reported(self, context: grpc.ServicerContext) -> Generator[None]:
        """Report errors that a user can fix as messages of the engine."""
        try:
            yield
        except _AbortError as error:
            context.abort(error.code, str(error))
        except CancelledError as error:
            context.abort(grpc.StatusCode.CANCELLED, str(error))
        except self._foreseen as error:
            context.abort(grpc.StatusCode.UNKNOWN, str(error))

    def _problem(self, work: Callable[[], None]) -> str | None:
        """Why something that exists already could not be finished; None when all went well."""
        try:
            work()
        except self._foreseen as error:
            return str(error)
        return None

    def _require_own(self, state: Properties, urn: str) -> None:
        if not state.get(MARK):
            message = _FOREIGN.format(urn=urn, package=self._package.name)
            raise _AbortError(message, grpc.StatusCode.FAILED_PRECONDITION)

    def _resource(self, token: str) -> Resource:
        try:
            return self._package.resources[token]
        except KeyError:
            raise _AbortError(f"the local provider has no model of {token}") from None

    def _cloud(self, properties: Properties, timeout: float) -> Cloud:
        if self._session is None:
            raise _AbortError("the local provider was used before it was configured")
        region = properties.get("region") or self._session.settings.region
        return Cloud(session=self._session, region=region, limit_s=timeout or _DEFAULT_LIMIT_S)

    def _add_default_tags(self, resource: Resource, new_inputs: Properties) -> None:
        defaults: Mapping[str, str] = self._session.settings.default_tags if self._session else {}
        name = resource.tags_property
        if name is not None and defaults and isinstance(new_inputs.get(name, {}), dict):
            new_inputs[name] = {**defaults, **new_inputs.get(name, {})}

    def _outputs(
        self, resource: Resource, cloud: Cloud, ident: str, inputs: Properties, state: Properties
    ) -> Properties:
        """The inputs, overridden by the cloud's present values."""
        live = resource.read(cloud, ident, state | inputs)
        if live is None:
            raise ProviderError(f"{ident}: created, but the cloud does not return it")
        computed = self._schema.resources[resource.token].computed
        kept = {k: v for k, v in state.items() if k in computed}
        return self._finished(resource, cloud, kept | inputs | live)

    def _finished(self, resource: Resource, cloud: Cloud, outputs: Properties) -> Properties:
        schema = self._schema.resources[resource.token]
        extra: Properties = {MARK: True}
        if "region" in schema.outputs:
            extra["region"] = cloud.region
        extra |= {k: v for k, v in resource.derived(outputs).items() if k in schema.outputs}
        return {k: v for k, v in (outputs | extra).items() if v is not None}

    def _previewed(self, resource: Resource, old: Properties, new: Properties, state: Properties) -> Properties:
        """Outputs of an update to come: what stays, what is asked for, and unknown for what will be seen then."""
        if old == new:
            return state
        kept = {k: v for k, v in state.items() if k not in old}
        unknown = {k: UNKNOWN for k in resource.volatile if k not in new}
        kept |= {k: v for k, v in resource.derived(new).items() if k in kept}
        # what was made of an input that does not change stays: an output may hold more than was given
        same = {k: state[k] for k, v in new.items() if k in state and k in old and old[k] == v}
        changed = {k: v for k, v in resource.filled_in(new).items() if k not in same}
        return kept | new | changed | same | unknown


def _inputs(struct: struct_pb2.Struct) -> Properties:
    return {k: v for k, v in from_struct(struct).items() if not k.startswith("__")}


def _named(
    resource: Resource, request: Any, new_inputs: Properties, old_inputs: Properties
) -> tuple[Properties, list[Failure]]:
    """The name that the provider fills in; the one it gave before stays."""
    naming = resource.naming
    if naming is None or naming.is_asked_for(new_inputs):
        return {}, []
    autonaming = request.autonaming if request.HasField("autonaming") else None
    if autonaming is not None and autonaming.mode == pb.CheckRequest.AutonamingOptions.DISABLE:
        reason = f"automatic naming is off for this stack; give {naming.property!r}"
        return {}, [Failure(path=naming.property, reason=reason)]
    if naming.property in old_inputs.get(BOOKKEEPING, []) and old_inputs.get(naming.property):
        return {naming.property: old_inputs[naming.property]}, []
    proposed = autonaming.proposed_name if autonaming is not None else ""
    return {naming.property: proposed or naming.automatic(request.name, request.randomSeed)}, []


def _diff_response(old: Properties, new: Properties, replaces: Callable[[str], bool]) -> pb.DiffResponse:
    response = pb.DiffResponse(changes=pb.DiffResponse.DIFF_NONE, hasDetailedDiff=True)
    for path, kind in differences(old, new):
        replace = replaces(path)
        name = kind + ("_REPLACE" if replace else "")
        response.detailedDiff[path].kind = pb.PropertyDiff.Kind.Value(name)
        response.detailedDiff[path].inputDiff = True
        if replace:
            response.replaces.append(path.split(".")[0].split("[")[0])
    keys = sorted(changed_keys(old, new))
    if keys:
        response.changes = pb.DiffResponse.DIFF_SOME
        response.diffs.extend(keys)
    return response


def _abort_not_ready(
    context: grpc.ServicerContext, ident: str, outputs: Properties, inputs: Properties, reason: str
) -> None:
    """Report to the engine that the resource exists but is incomplete; it stays in the stack's state."""
    detail = pb.ErrorResourceInitFailed(
        id=ident, properties=to_struct(outputs), reasons=[reason], inputs=to_struct(inputs)
    )
    packed = any_pb2.Any()
    packed.Pack(detail)
    code = grpc.StatusCode.UNKNOWN
    status = status_pb2.Status(code=code.value[0], message=reason, details=[packed])
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(code, reason)
