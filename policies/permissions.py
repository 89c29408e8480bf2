"""The rule on permissions: a plan may allow only what the program itself allows.

The lists are generated from the program (`python -m scripts.policy_lists`). `up` checks a policy that a preview does
not know yet.
"""

from collections.abc import Iterator
from typing import Final

from policies.context import Context
from policies.iam import aws, google, planned_names, required_denials, runs_as
from policies.iam.names import names_of
from policies.resource import Resource
from policies.rule import PropertyProblem, Rule


def _outside_the_list(resource: Resource, context: Context) -> Iterator[PropertyProblem]:
    names = names_of(context)
    if resource.type.startswith("aws"):
        yield from aws.judged(resource, names)
        yield from required_denials.missing(resource, names)
    elif resource.type.startswith(("gcp", "google")):
        yield from google.judged(resource, names)
    yield from runs_as.judged(resource, context, names)


RULES: Final = (
    Rule(
        id="iam-in-list",
        reason="A permission that the program does not need can turn a bug into a breach.",
        remedy=(
            "Allow only what policies/lists contains. After a change of the program, update the lists with `python -m"
            " scripts.policy_lists`. For another permission, write an exception."
        ),
        judges="policy documents, trust policies and managed policies on AWS; roles and members on Google Cloud",
        check_resource=_outside_the_list,
        check_plan=planned_names.judged,
    ),
)
