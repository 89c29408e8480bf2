"""The base of Google's resource types: path, request body, response and labels."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from gpufleet.domain.parsed import is_list
from localcloud.documents import inner, is_document
from localcloud.provider.checks import matches
from localcloud.provider.errors import Failure
from localcloud.provider.gcp.session import GoogleError, RestClient, finish, relative, rest_client
from localcloud.provider.gcp.shapes import RestShape, shape
from localcloud.provider.naming import Naming
from localcloud.provider.resource import Change, Resource
from localcloud.provider.session import Cloud
from localcloud.provider.translate import from_answer, to_request
from localcloud.provider.wire import UNKNOWN, Properties

ATTRIBUTION: Mapping[str, str] = {"goog-pulumi-provisioned": "true"}
"""The label that the real provider adds to all its resources."""

NAMING = Naming(limit=63, lower=True)
NAME_RULE = matches(
    "name",
    r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?",
    "a Compute Engine name (1 to 63 of a-z 0-9 -, beginning with a letter, not ending with a hyphen)",
)
_LABEL_KEY = re.compile(r"[a-z][\w-]{0,62}")
_LABEL_VALUE = re.compile(r"[\w-]{0,63}")
_LABEL_RULE = "at most 63 lower case letters, digits, _ and -; a key begins with a letter"
_IN_USE = re.compile(r"resourceInUse|RESOURCE_IN_USE|resourceNotReady|RESOURCE_NOT_READY", re.I)
_PLACES = frozenset({"project", "region", "zone"})


def fit_labels(given: Properties) -> list[Failure]:
    """Refuses labels that the cloud refuses: capitals, dots, colons, more than 63 characters."""
    labels = given.get("labels")
    failures: list[Failure] = []
    for key, value in labels.items() if is_document(labels) else ():
        if not _LABEL_KEY.fullmatch(key) or key != key.lower():
            failures.append(Failure(path=f"labels.{key}", reason=f"{key!r} is not a label key ({_LABEL_RULE})"))
        known = isinstance(value, str) and value != UNKNOWN
        if known and (not _LABEL_VALUE.fullmatch(value) or value != value.lower()):
            failures.append(Failure(path=f"labels.{key}", reason=f"{value!r} is not a label value ({_LABEL_RULE})"))
    return failures


def name_of(link: str) -> str:
    """The last part of a path."""
    return link.rstrip("/").rsplit("/", 1)[-1]


class RestResource(Resource):
    """A type at one path of one API, which creates, reads, patches and deletes it.

    Attributes:
        api: the discovery document's service and the name of the type's schema in it.
        place: its path below the project, with `{region}` and `{zone}` where they belong.
        renames: the API's field by property path where it differs by more than case or a plural.
        computed: the API's field by the name of an output that only the cloud sets.
        local: inputs that steer the provider and are not sent.
        labelled: whether it carries labels.
        fingerprinted: whether a patch must name the fingerprint that it is meant for.
        sent_always: inputs that the API wants in every patch.
    """

    api: ClassVar[tuple[str, str]]
    place: ClassVar[str]
    service: ClassVar[str] = "compute"
    naming = NAMING
    rules = (NAME_RULE, fit_labels)
    renames: ClassVar[Mapping[str, str]] = {}
    computed: ClassVar[Mapping[str, str]] = {}
    local: ClassVar[frozenset[str]] = frozenset()
    labelled: ClassVar[bool] = False
    fingerprinted: ClassVar[bool] = False
    sent_always: ClassVar[frozenset[str]] = frozenset()

    @property
    def tags_property(self) -> str | None:
        return "labels" if self.labelled else None

    @property
    def modelled(self) -> frozenset[str]:
        places = {p for p in _PLACES if p == "project" or f"{{{p}}}" in self.place}
        return self.force_new | self.mutable | self.local | places | ({"labels"} if self.labelled else set[str]())

    def derived(self, properties: Properties) -> Properties:
        if not self.labelled:
            return {}
        all_labels = {**inner(properties, "labels"), **ATTRIBUTION}
        return {"pulumiLabels": all_labels, "effectiveLabels": all_labels}

    def replaces(self, path: str, new: Properties) -> bool:
        return path.split(".")[0].split("[")[0] in self.force_new | _PLACES

    # -- location -------------------------------------------------------------------------------------------

    def parent(self, cloud: Cloud, inputs: Properties) -> str:
        """Path of the collection."""
        place = self.place.format(region=self.region(cloud, inputs), zone=self.zone(cloud, inputs))
        return f"projects/{inputs.get('project') or cloud.project}/{place}"

    def region(self, cloud: Cloud, inputs: Properties) -> str:
        return name_of(str(inputs.get("region") or cloud.session.settings.region))

    def zone(self, cloud: Cloud, inputs: Properties) -> str:
        zone = inputs.get("zone") or cloud.session.settings.zone
        if not zone and "{zone}" in self.place:
            raise ValueError("zone: is not set, and the provider has none; `pulumi config set gcp:zone` or give one")
        return name_of(str(zone))

    def client(self, cloud: Cloud) -> RestClient:
        return rest_client(cloud, self.service)

    @property
    def shape(self) -> RestShape:
        return shape(*self.api)

    @property
    def what(self) -> str:
        """The type's name in messages."""
        return self.token.rpartition(":")[2]

    # -- translation ------------------------------------------------------------------------------------------

    def to_wire(self, cloud: Cloud, inputs: Properties) -> Properties:
        """Inputs in the structure of the API, in Pulumi's names; overridden where the two differ."""
        return inputs

    def from_wire(self, raw: Properties) -> Properties:
        """The reverse of `to_wire`."""
        return raw

    def body(self, cloud: Cloud, inputs: Properties) -> Properties:
        """The request that makes it."""
        given = {k: v for k, v in inputs.items() if k not in _PLACES | self.local}
        if self.labelled:
            given["labels"] = {**inner(inputs, "labels"), **ATTRIBUTION}
        return self.renamed(self.to_wire(cloud, given))

    def renamed(self, given: Properties) -> Properties:
        request: Properties = to_request(given, self.shape, self.renames)
        return request

    def shown(self, cloud: Cloud, raw: Properties, state: Properties) -> Properties:
        """A response with Pulumi's names, in the form of the program's inputs."""
        given = {k: v for k, v in state.items() if k in self.modelled - self.local - _PLACES}
        answer = self.from_wire(raw)
        found: Properties = _like(given, from_answer(given, answer, self.renames))
        removed: Properties = {k: None for k, v in given.items() if k not in found and v not in (None, "", [], {})}
        places = {p: name_of(str(raw[p])) for p in ("region", "zone") if p in raw and f"{{{p}}}" in self.place}
        return (
            {output: raw[field] for output, field in self.computed.items() if field in raw}
            | removed
            | found
            | places
            | {"project": state.get("project") or cloud.project}
        )

    # -- operations ------------------------------------------------------------------------------------------

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        parent = self.parent(cloud, inputs)
        with error_context(f"Error creating {self.what}"):
            answer = self.client(cloud).call("POST", parent, self.body(cloud, inputs))
            self.finish(cloud, answer)
        return self.ident(parent, inputs)

    def ident(self, parent: str, inputs: Properties) -> str:
        return f"{parent}/{inputs['name']}"

    def finish(self, cloud: Cloud, answer: Mapping[str, Any]) -> None:
        """Wait for what a call began; APIs without operations are done when they answer."""
        if self.service == "compute":
            finish(cloud, answer)

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        raw = self.client(cloud).find(ident)
        return None if raw is None else self.shown(cloud, raw, state)

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        self.patch(cloud, ident, change, change.keys - self.local)

    def patch(self, cloud: Cloud, ident: str, change: Change, keys: frozenset[str]) -> None:
        """Write the named inputs; an input that was removed is set to null, which resets it."""
        if not keys:
            return
        whole = self.to_wire(cloud, change.new)
        if "labels" in keys and self.labelled:
            whole = {**whole, "labels": {**inner(change.new, "labels"), **ATTRIBUTION}}
        fields = self.fields_of(keys) | self.sent_always
        request = self.renamed({k: v for k, v in whole.items() if k in fields})
        present = {k.lower() for k in request}
        names = {n.lower(): n for n in self.shape.members}
        for key in fields - whole.keys():
            field = self.renames.get(key) or names.get(key.lower()) or names.get(key.lower().removesuffix("s"))
            if field and field.lower() not in present:
                request[field] = None
        with error_context(f"Error updating {self.what} {ident!r}"):
            client = self.client(cloud)
            if self.fingerprinted:
                request["fingerprint"] = client.call("GET", ident).get("fingerprint")
            self.finish(cloud, client.call("PATCH", ident, request))

    def fields_of(self, keys: frozenset[str]) -> frozenset[str]:
        """Keys of `to_wire`'s result that hold the named inputs."""
        return keys

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        delete_when_free(self, cloud, ident)


def delete_when_free(resource: RestResource, cloud: Cloud, ident: str) -> None:
    """Delete a resource, after other resources stop using it. No effect if it does not exist."""

    def done() -> bool:
        try:
            resource.finish(cloud, resource.client(cloud).call("DELETE", ident))
        except GoogleError as error:
            if error.status == 404:
                return True
            if error.status in (400, 409) and _IN_USE.search(str(error)):
                return False
            raise
        return True

    with error_context(f"Error deleting {resource.what} {ident!r}"):
        cloud.wait(f"{ident} to be free of what uses it", done)


@contextmanager
def error_context(what: str) -> Generator[None]:
    """Prefix errors of the cloud with the failed action, as the real provider does."""
    try:
        yield
    except GoogleError as error:
        raise error.during(what) from error


def _like(given: Any, live: Any) -> Any:
    """The answer where it means the same as what was given: links in short, fields that the API leaves out."""
    if is_document(given) and is_document(live):
        merged = {k: _like(given[k], v) if k in given else v for k, v in live.items()}
        # the API leaves out what is false, nothing or empty
        return {**{k: v for k, v in given.items() if k not in live and not v}, **merged}
    if is_list(given) and is_list(live) and len(given) == len(live):
        return [_like(g, item) for g, item in zip(given, live, strict=True)]
    if isinstance(given, str) and isinstance(live, str) and given != live and is_same_thing(given, live):
        return given
    return live


def is_same_thing(given: str, link: str) -> bool:
    """Whether a name or a partial path refers to the same resource as a full link."""
    if "projects/" not in link:
        return False
    whole, part = relative(link), relative(given)
    return bool(part) and (whole == part or whole.endswith(f"/{part}"))
