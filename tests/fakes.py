"""Stand-ins for the outside world."""

from dataclasses import dataclass, field
from typing import Any

import pulumi


@dataclass
class RecordingMocks(pulumi.runtime.Mocks):
    """Answers as the engine would and remembers every resource declared."""

    resources: list[pulumi.runtime.MockResourceArgs] = field(default_factory=list[pulumi.runtime.MockResourceArgs])

    def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str, dict[str, Any]]:
        self.resources.append(args)
        made = {"name": f"{args.name}-3f2a", "arn": f"arn:{args.name}", "latestVersion": 1, "selfLink": args.name}
        made |= {"email": f"{args.name}@example-project.iam.gserviceaccount.com"}
        return f"{args.name}-id", {**made, **args.inputs}

    def call(self, args: pulumi.runtime.MockCallArgs) -> tuple[dict[str, Any], None]:
        return {}, None

    def of_type(self, typ: str) -> list[pulumi.runtime.MockResourceArgs]:
        """The resources of that type, in the order in which they were declared."""
        return [resource for resource in self.resources if resource.typ == typ]

    def named(self, typ: str, name: str) -> dict[str, Any]:
        """The inputs of one resource. Raises KeyError that lists the names there are."""
        for resource in self.of_type(typ):
            if resource.name == name:
                return resource.inputs
        raise KeyError(f"no {typ} named {name}; there is {[r.name for r in self.of_type(typ)]}")
