"""The base of resource types of the provider."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from localcloud.provider.errors import Failure
from localcloud.provider.naming import Naming
from localcloud.provider.session import Cloud
from localcloud.provider.wire import Properties

Rule = Callable[[Properties], list[Failure]]
"""Looks at checked inputs (parts may be unknown) and returns what the cloud would refuse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """An update: what the program said before and says now. Only `keys` may be written to the cloud.

    Fields that the program ignores never are in `keys`, so values of other writers stay.
    """

    old: Properties
    new: Properties
    keys: frozenset[str]
    state: Properties

    def touches(self, *names: str) -> bool:
        """Whether any of the named inputs changed."""
        return not self.keys.isdisjoint(names)


class Resource(ABC):
    """One resource type: its inputs, and its operations in the cloud.

    Inputs outside `force_new` and `mutable` are refused: what is not modelled is never silently dropped.

    Attributes:
        token: Pulumi's name of the type.
        force_new: inputs whose change needs a new resource.
        mutable: inputs that an update can change.
        enums: allowed values by property path (`*` stands for any index or key).
        naming: how it is named by itself; None: it has no name or it must be given.
        rules: checks beyond types and enumerations.
        volatile: computed outputs that an update may change.
        completed: inputs that the cloud completes where the program does not state them. An import leaves them out.
        ignored: inputs that tune the real provider's waiting and mean nothing here.
    """

    token: ClassVar[str]
    force_new: ClassVar[frozenset[str]] = frozenset()
    mutable: ClassVar[frozenset[str]] = frozenset()
    enums: ClassVar[Mapping[str, frozenset[str]]] = {}
    naming: ClassVar[Naming | None] = None
    rules: ClassVar[tuple[Rule, ...]] = ()
    volatile: ClassVar[frozenset[str]] = frozenset()
    completed: ClassVar[frozenset[str]] = frozenset()
    tagged: ClassVar[bool] = False

    @property
    def tags_property(self) -> str | None:
        """The input that holds its tags; None where the type has none."""
        return "tags" if self.tagged else None

    def derived(self, properties: Properties) -> Properties:
        """Outputs that follow from the others; those that the type does not have are left out."""
        return {"tagsAll": properties.get("tags") or {}} if self.tagged else {}

    def filled_in(self, inputs: Properties) -> Properties:
        """Inputs that the cloud will complete, with unknown values where it will: what a preview can say of them."""
        del inputs
        return {}

    @property
    def modelled(self) -> frozenset[str]:
        """All inputs that may be given."""
        common = {"region"} | ({"tags"} if self.tagged else set[str]())
        return self.force_new | self.mutable | common

    def replaces(self, path: str, new: Properties) -> bool:
        """Whether a change at this property path needs a new resource, given all new inputs."""
        head = path.split(".")[0].split("[")[0]
        return head in self.force_new or head == "region"

    @abstractmethod
    def create(self, cloud: Cloud, inputs: Properties) -> str:
        """Create the resource and return its id."""

    def after_create(self, cloud: Cloud, ident: str, inputs: Properties) -> None:  # noqa: B027
        """Finish a resource that exists already; a failure here keeps it in the state."""

    @abstractmethod
    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        """The present outputs, and inputs that others may change. None: it does not exist."""

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        """Write only what changed."""
        raise NotImplementedError(f"{self.token} has no update")

    @abstractmethod
    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        """Delete the resource; no effect if it does not exist."""


Function = Callable[[Cloud, Properties], dict[str, Any]]
"""An invoke: asks the cloud and changes nothing."""
