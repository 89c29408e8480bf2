"""Load balancers with target groups and listeners."""

from __future__ import annotations

from typing import Any

from localcloud.aws.sdk import ClientError, error_code
from localcloud.provider.aws.calls import delete_when_free, first, listed, or_none, present
from localcloud.provider.aws.tags import tag_changes, tag_list, tag_map
from localcloud.provider.checks import between, conflicts, matches
from localcloud.provider.naming import Naming
from localcloud.provider.resource import Change, Resource
from localcloud.provider.session import Cloud
from localcloud.provider.translate import from_answer, input_shape, to_request
from localcloud.provider.wire import Properties, sha1

_NAME = r"(?!internal-)(?!.*-$)(?!-)[a-zA-Z0-9-]{1,32}"
_NAME_RULE = "a name of 1 to 32 of a-z A-Z 0-9 -, not starting or ending with -"
_PROTOCOLS = frozenset({"HTTP", "HTTPS", "TCP", "TLS", "UDP", "TCP_UDP", "GENEVE", "QUIC", "TCP_QUIC"})
_BALANCER_NAMING = Naming(prefix_property="namePrefix", limit=32)
_BALANCER_ATTRIBUTES = {
    "enableCrossZoneLoadBalancing": "load_balancing.cross_zone.enabled",
    "enableDeletionProtection": "deletion_protection.enabled",
    "idleTimeout": "idle_timeout.timeout_seconds",
}


def _attributes(inputs: Properties, names: dict[str, str], keys: frozenset[str]) -> list[dict[str, str]]:
    wanted = {field: inputs[name] for name, field in names.items() if name in keys and name in inputs}
    return [{"Key": k, "Value": str(v).lower() if isinstance(v, bool) else str(v)} for k, v in wanted.items()]


def _update_tags(client: Any, arn: str, change: Change) -> None:
    if change.touches("tags"):
        put, remove = tag_changes(change)
        if remove:
            client.remove_tags(ResourceArns=[arn], TagKeys=remove)
        if put:
            client.add_tags(ResourceArns=[arn], Tags=tag_list(put))


def _tags_of(cloud: Cloud, arn: str) -> dict[str, str]:
    described = cloud.client("elbv2").describe_tags(ResourceArns=[arn])["TagDescriptions"]
    return tag_map(cloud, described[0]["Tags"] if described else [])


class LoadBalancer(Resource):
    token = "aws:lb/loadBalancer:LoadBalancer"
    naming = _BALANCER_NAMING
    tagged = True
    force_new = frozenset({"internal", "loadBalancerType", "name", "namePrefix"})
    mutable = frozenset({"ipAddressType", "securityGroups", "subnets", *_BALANCER_ATTRIBUTES})
    enums = {
        "ipAddressType": frozenset({"ipv4", "dualstack", "dualstack-without-public-ipv4"}),
        "loadBalancerType": frozenset({"application", "gateway", "network"}),
    }
    rules = (
        conflicts("name", "namePrefix"),
        matches("name", _NAME, _NAME_RULE),
        between("idleTimeout", 1, 4000),
    )

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        answer = cloud.client("elbv2").create_load_balancer(
            Name=_BALANCER_NAMING.from_prefix(inputs),
            Scheme="internal" if inputs.get("internal") else "internet-facing",
            Type=inputs.get("loadBalancerType", "application"),
            **present(
                IpAddressType=inputs.get("ipAddressType"),
                SecurityGroups=inputs.get("securityGroups"),
                Subnets=inputs.get("subnets"),
                Tags=tag_list(inputs.get("tags")) or None,
            ),
        )
        return str(answer["LoadBalancers"][0]["LoadBalancerArn"])

    def after_create(self, cloud: Cloud, ident: str, inputs: Properties) -> None:
        self._set_attributes(cloud, ident, inputs, frozenset(inputs))

    def _set_attributes(self, cloud: Cloud, ident: str, inputs: Properties, keys: frozenset[str]) -> None:
        if attributes := _attributes(inputs, _BALANCER_ATTRIBUTES, keys):
            cloud.client("elbv2").modify_load_balancer_attributes(LoadBalancerArn=ident, Attributes=attributes)

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        found = first(cloud.client("elbv2").describe_load_balancers, "LoadBalancers", LoadBalancerArns=[ident])
        return found and {
            "arn": ident,
            "arnSuffix": ident.partition("loadbalancer/")[2],
            "dnsName": found["DNSName"],
            "internal": found["Scheme"] == "internal",
            "ipAddressType": found.get("IpAddressType"),
            "loadBalancerType": found["Type"],
            "name": found["LoadBalancerName"],
            "securityGroups": found.get("SecurityGroups") or [],
            "subnets": [z["SubnetId"] for z in found["AvailabilityZones"]],
            "vpcId": found.get("VpcId"),
            "zoneId": found.get("CanonicalHostedZoneId"),
            "tags": _tags_of(cloud, ident),
        }

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        client = cloud.client("elbv2")
        if change.touches("securityGroups"):
            groups = change.new.get("securityGroups", [])
            client.set_security_groups(LoadBalancerArn=ident, SecurityGroups=groups)
        if change.touches("subnets"):
            client.set_subnets(LoadBalancerArn=ident, Subnets=change.new["subnets"])
        if change.touches("ipAddressType"):
            kind = change.new.get("ipAddressType", "ipv4")
            client.set_ip_address_type(LoadBalancerArn=ident, IpAddressType=kind)
        self._set_attributes(cloud, ident, change.new, change.keys)
        _update_tags(client, ident, change)

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        or_none(cloud.client("elbv2").delete_load_balancer, LoadBalancerArn=ident)


_TARGETS_NAMING = Naming(prefix_property="namePrefix", limit=32)
_TARGETS_ATTRIBUTES = {
    "connectionTermination": "deregistration_delay.connection_termination.enabled",
    "deregistrationDelay": "deregistration_delay.timeout_seconds",
    "preserveClientIp": "preserve_client_ip.enabled",
    "proxyProtocolV2": "proxy_protocol_v2.enabled",
}
_HEALTH = {
    "enabled": "HealthCheckEnabled",
    "healthyThreshold": "HealthyThresholdCount",
    "interval": "HealthCheckIntervalSeconds",
    "path": "HealthCheckPath",
    "port": "HealthCheckPort",
    "protocol": "HealthCheckProtocol",
    "timeout": "HealthCheckTimeoutSeconds",
    "unhealthyThreshold": "UnhealthyThresholdCount",
}


class TargetGroup(Resource):
    token = "aws:lb/targetGroup:TargetGroup"
    naming = _TARGETS_NAMING
    tagged = True
    force_new = frozenset(
        {"ipAddressType", "name", "namePrefix", "port", "protocol", "protocolVersion", "targetType", "vpcId"}
    )
    mutable = frozenset({"healthCheck", *_TARGETS_ATTRIBUTES})
    enums = {
        "healthCheck.protocol": frozenset({"HTTP", "HTTPS", "TCP"}),
        "protocol": _PROTOCOLS,
        "targetType": frozenset({"alb", "instance", "ip", "lambda"}),
    }
    rules = (
        conflicts("name", "namePrefix"),
        matches("name", _NAME, _NAME_RULE),
        between("port", 1, 65535),
        between("healthCheck.interval", 5, 300),
        between("healthCheck.healthyThreshold", 2, 10),
        between("healthCheck.unhealthyThreshold", 2, 10),
    )

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        answer = cloud.client("elbv2").create_target_group(
            Name=_TARGETS_NAMING.from_prefix(inputs),
            TargetType=inputs.get("targetType", "instance"),
            **_health(inputs.get("healthCheck", {})),
            **present(
                Port=inputs.get("port"),
                Protocol=inputs.get("protocol"),
                ProtocolVersion=inputs.get("protocolVersion"),
                Tags=tag_list(inputs.get("tags")) or None,
                VpcId=inputs.get("vpcId"),
            ),
        )
        return str(answer["TargetGroups"][0]["TargetGroupArn"])

    def after_create(self, cloud: Cloud, ident: str, inputs: Properties) -> None:
        self._set_attributes(cloud, ident, inputs, frozenset(inputs))

    def _set_attributes(self, cloud: Cloud, ident: str, inputs: Properties, keys: frozenset[str]) -> None:
        if attributes := _attributes(inputs, _TARGETS_ATTRIBUTES, keys):
            cloud.client("elbv2").modify_target_group_attributes(TargetGroupArn=ident, Attributes=attributes)

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        found = first(cloud.client("elbv2").describe_target_groups, "TargetGroups", TargetGroupArns=[ident])
        if found is None:
            return None
        check = {name: found[field] for name, field in _HEALTH.items() if field in found}
        return {
            "arn": ident,
            "arnSuffix": ident.rpartition(":")[2],
            "healthCheck": check,
            "loadBalancerArns": found.get("LoadBalancerArns", []),
            "name": found["TargetGroupName"],
            "port": found.get("Port"),
            "protocol": found.get("Protocol"),
            "targetType": found.get("TargetType"),
            "vpcId": found.get("VpcId"),
            "tags": _tags_of(cloud, ident),
        }

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        client = cloud.client("elbv2")
        if change.touches("healthCheck"):
            client.modify_target_group(TargetGroupArn=ident, **_health(change.new.get("healthCheck", {})))
        self._set_attributes(cloud, ident, change.new, change.keys)
        _update_tags(client, ident, change)

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        delete_when_free(cloud, ident, cloud.client("elbv2").delete_target_group, TargetGroupArn=ident)


def _health(check: Properties) -> Properties:
    request = {_HEALTH[name]: value for name, value in check.items() if name in _HEALTH}
    return request | ({"Matcher": {"HttpCode": check["matcher"]}} if "matcher" in check else {})


class TargetGroupAttachment(Resource):
    token = "aws:lb/targetGroupAttachment:TargetGroupAttachment"
    force_new = frozenset({"availabilityZone", "port", "targetGroupArn", "targetId"})

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        target = self._target(inputs)
        cloud.client("elbv2").register_targets(TargetGroupArn=inputs["targetGroupArn"], Targets=[target])
        return f"{inputs['targetGroupArn']}-{sha1(str(sorted(target.items())))[:26]}"

    def _target(self, inputs: Properties) -> Properties:
        zone = inputs.get("availabilityZone")
        return present(Id=inputs["targetId"], Port=inputs.get("port"), AvailabilityZone=zone)

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        arn = state["targetGroupArn"]
        call = cloud.client("elbv2").describe_target_health
        for described in listed(call, "TargetHealthDescriptions", TargetGroupArn=arn):
            target = described["Target"]
            if target["Id"] == state["targetId"] and state.get("port") in {None, target.get("Port")}:
                return {"targetGroupArn": arn, "targetId": target["Id"]}
        return None

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        targets = [self._target(state)]
        try:
            or_none(cloud.client("elbv2").deregister_targets, TargetGroupArn=state["targetGroupArn"], Targets=targets)
        except ClientError as error:
            if error_code(error) != "InvalidTarget":  # the instance ended first
                raise


_LISTENER_FIELDS = frozenset({"alpnPolicy", "defaultActions", "port", "protocol", "sslPolicy"})


class Listener(Resource):
    token = "aws:lb/listener:Listener"
    tagged = True
    force_new = frozenset({"loadBalancerArn"})
    mutable = _LISTENER_FIELDS | {"certificateArn"}
    enums = {
        "defaultActions[*].type": frozenset(
            {"authenticate-cognito", "authenticate-oidc", "fixed-response", "forward", "jwt-validation", "redirect"}
        ),
        "protocol": _PROTOCOLS,
    }
    rules = (between("port", 1, 65535),)

    def _request(self, cloud: Cloud, inputs: Properties) -> Properties:
        given = {k: v for k, v in inputs.items() if k in _LISTENER_FIELDS}
        request = to_request(given, input_shape(cloud, "elbv2", "CreateListener"))
        certificate = inputs.get("certificateArn")
        return request | ({"Certificates": [{"CertificateArn": certificate}]} if certificate else {})

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        answer = cloud.client("elbv2").create_listener(
            LoadBalancerArn=inputs["loadBalancerArn"],
            **self._request(cloud, inputs),
            **present(Tags=tag_list(inputs.get("tags")) or None),
        )
        return str(answer["Listeners"][0]["ListenerArn"])

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        found = first(cloud.client("elbv2").describe_listeners, "Listeners", ListenerArns=[ident])
        if found is None:
            return None
        given = {k: v for k, v in state.items() if k in _LISTENER_FIELDS}
        return {
            **from_answer(given, found),
            "arn": ident,
            "loadBalancerArn": found["LoadBalancerArn"],
            "port": found.get("Port"),
            "protocol": found.get("Protocol"),
            "tags": _tags_of(cloud, ident),
        }

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        if change.keys - {"tags"}:
            cloud.client("elbv2").modify_listener(ListenerArn=ident, **self._request(cloud, change.new))
        _update_tags(cloud.client("elbv2"), ident, change)

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        or_none(cloud.client("elbv2").delete_listener, ListenerArn=ident)
