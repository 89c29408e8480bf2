"""The rules as policies that Pulumi's engine runs. Import has no side effects: only `__main__` starts a policy
server.
"""

from collections.abc import Iterator
from dataclasses import replace

from pulumi_policy import (
    EnforcementLevel,
    Policy,
    PolicyResource,
    ReportViolation,
    ResourceValidationArgs,
    ResourceValidationPolicy,
    StackValidationArgs,
    StackValidationPolicy,
)

from policies.context import Context
from policies.pack import RULES, problems_of
from policies.resource import Properties, Resource
from policies.rule import Rule


def policies(context: Context) -> list[Policy]:
    """Return the rules as policies for the engine, for one environment, and a policy for settings that could not be
    read.
    """
    found = [policy for rule in RULES for policy in _policies_of(rule, context)]
    if problems := problems_of(context):
        found.append(unreadable("; ".join(problems)))
    if context.unknown:
        ignored = f"{', '.join(context.unknown)}: this release of the policy pack does not know it, and ignores it"
        found.append(_on_settings("settings-all-known", ignored, EnforcementLevel.ADVISORY))
    return found


def unreadable(why: str) -> Policy:
    """Return a policy that refuses the plan and reports why the environment's settings are unusable."""
    return _on_settings("settings-known", why, EnforcementLevel.MANDATORY)


def _on_settings(name: str, message: str, level: EnforcementLevel) -> Policy:
    def validate(args: StackValidationArgs, report: ReportViolation) -> None:
        report(message, None)

    return StackValidationPolicy(
        name=name,
        description="A plan is checked against the settings of its environment.",
        validate=validate,
        enforcement_level=level,
    )


def _policies_of(rule: Rule, context: Context) -> Iterator[Policy]:
    """Yield one policy per method. A resource policy checks the requested properties before each resource is created.
    A stack policy checks the whole plan as it will be; in it, a provider leaves unset properties unknown.
    """
    described = f"{rule.reason} {rule.remedy}"
    if rule.check_resource is not None:
        of_resource = replace(rule, check_plan=None)

        def validate(args: ResourceValidationArgs, report: ReportViolation) -> None:
            resource = Resource(type=args.resource_type, name=args.name, props=Properties(args.props), urn=args.urn)
            for violation in of_resource.check([resource], context):
                report(rule.message(violation), None)

        yield ResourceValidationPolicy(
            name=rule.id, description=described, validate=validate, enforcement_level=EnforcementLevel.MANDATORY
        )

    if rule.check_plan is not None:
        of_plan = replace(rule, check_resource=None)

        def validate_stack(args: StackValidationArgs, report: ReportViolation) -> None:
            for violation in of_plan.check([_resource(r) for r in args.resources], context):
                report(rule.message(violation), None)

        yield StackValidationPolicy(
            name=rule.id, description=described, validate=validate_stack, enforcement_level=EnforcementLevel.MANDATORY
        )


def _resource(raw: PolicyResource) -> Resource:
    return Resource(
        type=raw.resource_type,
        name=raw.name,
        props=Properties(raw.props),
        urn=raw.urn,
        depends={key: tuple(r.urn for r in found) for key, found in raw.property_dependencies.items()},
    )
