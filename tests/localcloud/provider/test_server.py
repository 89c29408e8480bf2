"""The provider protocol, used by a real gRPC client, with a resource type in memory."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from google.protobuf import empty_pb2
from google.rpc import status_pb2
from localcloud.provider.aws.session import AwsSession
from localcloud.provider.errors import NotReadyError
from localcloud.provider.naming import Naming
from localcloud.provider.resource import Change, Resource
from localcloud.provider.schema import Property, ResourceSchema, Schema, Shape
from localcloud.provider.server import MARK, Package, Provider
from localcloud.provider.session import Cloud, Settings
from localcloud.provider.wire import UNKNOWN, Properties, from_struct, to_struct
from pulumi.runtime.proto import provider_pb2 as pb
from pulumi.runtime.proto import provider_pb2_grpc

BOX = "aws:test/box:Box"
URN = "urn:pulumi:test::unit::aws:test/box:Box::box"


class Box(Resource):
    """A resource with a size that others may change, and a version that counts updates."""

    token = BOX
    naming = Naming(prefix_property="namePrefix", limit=20)
    tagged = True
    force_new = frozenset({"name", "namePrefix", "colour"})
    mutable = frozenset({"size", "limit", "sick"})
    volatile = frozenset({"version"})

    def __init__(self) -> None:
        self.boxes: dict[str, Properties] = {}
        self.changes: list[Change] = []

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        ident = f"box-{len(self.boxes)}"
        self.boxes[ident] = {**inputs, "version": 1}
        return ident

    def after_create(self, cloud: Cloud, ident: str, inputs: Properties) -> None:
        if inputs.get("sick"):
            raise NotReadyError("waited 1 s for the box to be well")

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        return self.boxes.get(ident)

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        self.changes.append(change)
        box = self.boxes[ident]
        for key in change.keys:
            box[key] = change.new.get(key)
        box["version"] += 1

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        self.boxes.pop(ident, None)


def _property(kind: str, *, item: str | None = None) -> Property:
    return Property(shape=Shape(kind=kind, item=Shape(kind=item) if item else None), required=False)


INPUTS = {
    "name": _property("string"),
    "namePrefix": _property("string"),
    "colour": _property("string"),
    "size": _property("integer"),
    "limit": _property("integer"),
    "sick": _property("boolean"),
    "region": _property("string"),
    "tags": _property("map", item="string"),
}
SCHEMA = Schema(
    resources={
        BOX: ResourceSchema(inputs=INPUTS, outputs=frozenset(INPUTS) | {"arn", "tagsAll", "version"}),
    },
    objects={},
)
SETTINGS = Settings(endpoint="http://127.0.0.1:1", token="t", region="us-east-1", default_tags={"env": "test"})


@pytest.fixture
def box() -> Box:
    return Box()


@pytest.fixture
def engine(box: Box) -> Iterator[provider_pb2_grpc.ResourceProviderStub]:
    """A client like the engine, with the provider configured."""

    def ask(cloud: Cloud, arguments: Properties) -> Properties:
        return {"region": cloud.region, "asked": arguments["what"]}

    package = Package(
        name="aws",
        distribution="pulumi-aws",
        resources={BOX: box},
        functions={"aws:test/ask:ask": ask},
        open_session=lambda *_: AwsSession(SETTINGS),
    )
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    provider = Provider(package, SCHEMA)
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(provider, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = provider_pb2_grpc.ResourceProviderStub(channel)
        stub.Configure(pb.ConfigureRequest(args=to_struct({"region": "us-east-1"})))
        yield stub
    server.stop(grace=None)


def check(engine: Any, new_inputs: Properties, olds: Properties | None = None, **more: Any) -> Any:
    request = pb.CheckRequest(
        urn=URN,
        type=BOX,
        name="box",
        news=to_struct(new_inputs),
        olds=to_struct(olds or {}),
        randomSeed=b"seed",
        **more,
    )
    return engine.Check(request)


def create(engine: Any, inputs: Properties, *, preview: bool = False) -> Any:
    return engine.Create(pb.CreateRequest(urn=URN, type=BOX, properties=to_struct(inputs), preview=preview))


def update(engine: Any, ident: str, old: Properties, new: Properties, state: Properties, **more: Any) -> Any:
    request = pb.UpdateRequest(
        urn=URN, type=BOX, id=ident, old_inputs=to_struct(old), news=to_struct(new), olds=to_struct(state), **more
    )
    return engine.Update(request)


def diff(engine: Any, old: Properties, new: Properties, state: Properties) -> Any:
    request = pb.DiffRequest(
        urn=URN, type=BOX, id="box-0", old_inputs=to_struct(old), news=to_struct(new), olds=to_struct(state)
    )
    return engine.Diff(request)


def read(engine: Any, ident: str, inputs: Properties, state: Properties) -> Any:
    request = pb.ReadRequest(urn=URN, type=BOX, id=ident, inputs=to_struct(inputs), properties=to_struct(state))
    return engine.Read(request)


def test_version_is_that_of_the_installed_package(engine: Any) -> None:
    assert engine.GetPluginInfo(empty_pb2.Empty()).version == "7.51.1"


def test_name_is_generated_and_kept(engine: Any) -> None:
    first = from_struct(check(engine, {"size": 1}).inputs)
    assert first["name"].startswith("box-")
    assert len(first["name"]) == len("box-") + 7
    assert first["__defaults"] == ["name"]
    other_seed = {**first, "name": "box-0000000"}
    assert from_struct(check(engine, {"size": 2}, other_seed).inputs)["name"] == "box-0000000"


def test_name_removed_from_the_program_is_not_kept(engine: Any) -> None:
    olds = {"name": "mine", "__defaults": []}
    assert from_struct(check(engine, {}, olds).inputs)["name"] != "mine"


@pytest.mark.parametrize("given", [{"name": "mine"}, {"namePrefix": "my-"}])
def test_name_set_by_the_program_is_unchanged(engine: Any, given: Properties) -> None:
    inputs = from_struct(check(engine, given).inputs)
    assert inputs.get("name") == given.get("name")
    assert inputs["__defaults"] == []


def test_naming_rules_of_the_stack_apply(engine: Any) -> None:
    options = pb.CheckRequest.AutonamingOptions
    proposed = options(proposed_name="proposed", mode=options.PROPOSE)
    assert from_struct(check(engine, {}, autonaming=proposed).inputs)["name"] == "proposed"
    refused = check(engine, {}, autonaming=options(mode=options.DISABLE))
    assert [f.property for f in refused.failures] == ["name"]


def test_tags_of_the_resource_override_default_tags(engine: Any) -> None:
    assert from_struct(check(engine, {"tags": {"a": "b"}}).inputs)["tags"] == {"env": "test", "a": "b"}
    assert from_struct(check(engine, {"tags": {"env": "mine"}}).inputs)["tags"] == {"env": "mine"}


def test_unknown_type_is_refused(engine: Any) -> None:
    answer = engine.Check(pb.CheckRequest(urn=URN, type="aws:eks/cluster:Cluster", name="x"))
    assert "no model of aws:eks/cluster:Cluster" in answer.failures[0].reason


def test_preview_creates_nothing_and_knows_only_the_inputs(engine: Any, box: Box) -> None:
    outputs = from_struct(create(engine, {"name": "a", "size": 1}, preview=True).properties)
    assert box.boxes == {}
    assert outputs["size"] == 1
    assert outputs["version"] == outputs["arn"] == UNKNOWN


def test_outputs_contain_the_mark_and_the_region(engine: Any) -> None:
    outputs = from_struct(create(engine, {"name": "a", "tags": {"t": "1"}}).properties)
    assert outputs[MARK] is True
    assert outputs["region"] == "us-east-1"
    assert outputs["tagsAll"] == {"t": "1"}


def test_update_writes_only_what_the_program_changed(engine: Any, box: Box) -> None:
    inputs = {"name": "a", "size": 2, "limit": 5}
    made = create(engine, inputs)
    box.boxes[made.id]["size"] = 9  # a change by another user
    outputs = update(engine, made.id, inputs, inputs | {"limit": 6}, from_struct(made.properties)).properties
    assert box.changes[0].keys == {"limit"}
    assert from_struct(outputs)["size"] == 9
    assert from_struct(outputs)["version"] == 2


def test_preview_of_an_update_marks_changing_outputs_as_unknown(engine: Any, box: Box) -> None:
    inputs = {"name": "a", "size": 2}
    made = create(engine, inputs)
    state = from_struct(made.properties)
    outputs = from_struct(update(engine, made.id, inputs, inputs | {"size": 3}, state, preview=True).properties)
    assert box.changes == []
    assert outputs["version"] == UNKNOWN
    assert outputs["size"] == 3


def test_refresh_reports_external_changes_of_declared_inputs(engine: Any, box: Box) -> None:
    inputs = {"name": "a", "size": 2}
    made = create(engine, inputs)
    box.boxes[made.id] |= {"size": 9, "limit": 4}
    answer = read(engine, made.id, inputs, from_struct(made.properties))
    live = from_struct(answer.inputs)
    assert live["size"] == 9
    assert "limit" not in live
    assert from_struct(answer.properties)["limit"] == 4


def test_refresh_reports_a_missing_resource(engine: Any, box: Box) -> None:
    made = create(engine, {"name": "a"})
    box.boxes.clear()
    assert read(engine, made.id, {"name": "a"}, from_struct(made.properties)).id == ""


def test_existing_resource_can_be_imported(engine: Any, box: Box) -> None:
    box.boxes["box-7"] = {"name": "old", "size": 3, "version": 8}
    inputs = from_struct(read(engine, "box-7", {}, {}).inputs)
    assert {k: v for k, v in inputs.items() if k != "__defaults"} == {"name": "old", "size": 3}


@pytest.mark.parametrize(
    ("old", "new", "changes", "replaces"),
    [
        pytest.param({"size": 1}, {"size": 1}, pb.DiffResponse.DIFF_NONE, [], id="none"),
        pytest.param({"size": 1}, {"size": 2}, pb.DiffResponse.DIFF_SOME, [], id="update"),
        pytest.param({"colour": "red"}, {"colour": "blue"}, pb.DiffResponse.DIFF_SOME, ["colour"], id="replace"),
        pytest.param({"size": 1}, {"size": UNKNOWN}, pb.DiffResponse.DIFF_SOME, [], id="unknown"),
        pytest.param({}, {"region": "eu-west-1"}, pb.DiffResponse.DIFF_SOME, ["region"], id="region"),
    ],
)
def test_diff_of_inputs(engine: Any, old: Properties, new: Properties, changes: int, replaces: list[str]) -> None:
    answer = diff(engine, old, new, {MARK: True})
    assert (answer.changes, list(answer.replaces)) == (changes, replaces)


@pytest.mark.parametrize(("new_name", "first_deleted"), [("a", True), ("b", False)])
def test_resource_is_deleted_first_when_its_replacement_has_the_same_name(
    engine: Any, new_name: str, first_deleted: bool
) -> None:
    answer = diff(engine, {"name": "a", "colour": "x"}, {"name": new_name, "colour": "y"}, {MARK: True})
    assert answer.deleteBeforeReplace is first_deleted


def test_resource_that_fails_to_initialize_stays_in_the_state(engine: Any, box: Box) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        create(engine, {"name": "a", "sick": True})
    metadata: dict[str, bytes] = dict(caught.value.trailing_metadata())  # type: ignore[attr-defined]
    status = status_pb2.Status.FromString(metadata["grpc-status-details-bin"])
    detail = pb.ErrorResourceInitFailed()
    assert status.details[0].Unpack(detail)
    assert detail.id in box.boxes
    assert list(detail.reasons) == ["waited 1 s for the box to be well"]
    assert from_struct(detail.properties)[MARK] is True


@pytest.mark.parametrize("rpc", ["diff", "read", "update", "delete"])
def test_resource_of_a_real_account_is_not_changed(engine: Any, box: Box, rpc: str) -> None:
    box.boxes["box-0"] = {"name": "a", "version": 1}
    foreign = {"name": "a", "version": 1}
    calls = {
        "diff": lambda: diff(engine, {"name": "a"}, {"name": "b"}, foreign),
        "read": lambda: read(engine, "box-0", {"name": "a"}, foreign),
        "update": lambda: update(engine, "box-0", {"name": "a"}, {"name": "a", "size": 1}, foreign),
        "delete": lambda: engine.Delete(
            pb.DeleteRequest(urn=URN, type=BOX, id="box-0", properties=to_struct(foreign))
        ),
    }
    with pytest.raises(grpc.RpcError, match="was not made by the local provider"):
        calls[rpc]()
    assert box.boxes == {"box-0": {"name": "a", "version": 1}}
    assert box.changes == []


def test_delete_can_be_repeated(engine: Any, box: Box) -> None:
    made = create(engine, {"name": "a"})
    request = pb.DeleteRequest(urn=URN, type=BOX, id=made.id, properties=made.properties)
    engine.Delete(request)
    engine.Delete(request)
    assert box.boxes == {}


def test_functions_respond_and_unknown_ones_are_refused(engine: Any) -> None:
    answer = engine.Invoke(pb.InvokeRequest(tok="aws:test/ask:ask", args=to_struct({"what": "x"})))
    assert from_struct(getattr(answer, "return")) == {"region": "us-east-1", "asked": "x"}
    with pytest.raises(grpc.RpcError, match="no function aws:test/other:other"):
        engine.Invoke(pb.InvokeRequest(tok="aws:test/other:other"))


def test_secrets_are_decrypted_for_the_cloud(engine: Any, box: Box) -> None:
    secret = {"4dabf18193072939515e22adb298388d": "1b47061264138c4ac30d75fd1eb44270", "value": "red"}
    create(engine, {"name": "a", "colour": secret})
    assert box.boxes["box-0"]["colour"] == "red"


def test_replacement_with_a_generated_name_is_created_first(engine: Any) -> None:
    named = {"name": "a-0123456", "__defaults": ["name"]}
    answer = diff(engine, {**named, "colour": "x"}, {**named, "colour": "y"}, {MARK: True})
    assert list(answer.replaces) == ["colour"]
    assert answer.deleteBeforeReplace is False
