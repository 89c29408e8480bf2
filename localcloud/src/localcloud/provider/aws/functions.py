"""Functions of the AWS package: they read from the embedded cloud and change nothing."""

from __future__ import annotations

import json
from typing import Any

from localcloud.documents import inner
from localcloud.provider.aws.calls import first, listed, or_none
from localcloud.provider.aws.tags import tag_map
from localcloud.provider.errors import ProviderError
from localcloud.provider.resource import Function
from localcloud.provider.session import Cloud
from localcloud.provider.wire import Properties


def _only(arguments: Properties, *names: str) -> None:
    """Refuse arguments that are not modelled: an answer that ignores a filter would be wrong."""
    for name in arguments:
        if name not in (*names, "region"):
            raise ProviderError(f"argument {name!r} is not modelled by the local provider")


def _filters(arguments: Properties) -> list[dict[str, Any]]:
    given = [{"Name": f["name"], "Values": f["values"]} for f in arguments.get("filters", [])]
    tags = [{"Name": f"tag:{k}", "Values": [v]} for k, v in inner(arguments, "tags").items()]
    return given + tags


def get_availability_zones(cloud: Cloud, arguments: Properties) -> Properties:
    _only(arguments, "allAvailabilityZones", "excludeNames", "excludeZoneIds", "filters", "state")
    filters = _filters(arguments)
    if "state" in arguments:
        filters.append({"Name": "state", "Values": [arguments["state"]]})
    zones = cloud.client("ec2").describe_availability_zones(Filters=filters)["AvailabilityZones"]
    kept = [
        z
        for z in zones
        if z["ZoneName"] not in arguments.get("excludeNames", [])
        and z["ZoneId"] not in arguments.get("excludeZoneIds", [])
    ]
    return {
        **arguments,
        "id": cloud.region,
        "region": cloud.region,
        "groupNames": sorted({z.get("GroupName", cloud.region) for z in kept}),
        "names": sorted(z["ZoneName"] for z in kept),
        "zoneIds": [z["ZoneId"] for z in sorted(kept, key=lambda z: z["ZoneName"])],
    }


def get_ami(cloud: Cloud, arguments: Properties) -> Properties:
    _only(arguments, "filters", "mostRecent", "owners", "executableUsers", "includeDeprecated")
    request: Properties = {"Filters": _filters(arguments)}
    if "owners" in arguments:
        request["Owners"] = arguments["owners"]
    images = sorted(cloud.client("ec2").describe_images(**request)["Images"], key=lambda i: i.get("CreationDate", ""))
    if not images:
        raise ProviderError("getAmi: your query returned no image; change its filters")
    if len(images) > 1 and not arguments.get("mostRecent"):
        raise ProviderError("getAmi: your query returned more than one image; narrow its filters or set mostRecent")
    image = images[-1]
    return {
        **arguments,
        "architecture": image.get("Architecture", ""),
        "creationDate": image.get("CreationDate", ""),
        "id": image["ImageId"],
        "imageId": image["ImageId"],
        "name": image.get("Name", ""),
        "ownerId": image.get("OwnerId", ""),
        "region": cloud.region,
        "rootDeviceName": image.get("RootDeviceName", ""),
        "state": image.get("State", "available"),
        "tags": tag_map(cloud, image.get("Tags")),
        "blockDeviceMappings": [],
    }


def get_parameter(cloud: Cloud, arguments: Properties) -> Properties:
    _only(arguments, "name", "withDecryption")
    decrypt = arguments.get("withDecryption", True)
    answer = or_none(cloud.client("ssm").get_parameter, Name=arguments["name"], WithDecryption=decrypt)
    if answer is None:
        raise ProviderError(f"getParameter: no parameter {arguments['name']}")
    found = answer["Parameter"]
    return {
        "arn": found["ARN"],
        "id": found["Name"],
        "insecureValue": found["Value"] if found["Type"] != "SecureString" else "",
        "name": found["Name"],
        "region": cloud.region,
        "type": found["Type"],
        "value": found["Value"],
        "version": found["Version"],
        "withDecryption": decrypt,
    }


def get_caller_identity(cloud: Cloud, arguments: Properties) -> Properties:
    answer = cloud.client("sts").get_caller_identity()
    account = answer["Account"]
    return {"accountId": account, "arn": answer["Arn"], "id": account, "userId": answer["UserId"]}


def get_region(cloud: Cloud, arguments: Properties) -> Properties:
    region = arguments.get("region") or arguments.get("name") or cloud.region
    return {
        "description": region,
        "endpoint": f"ec2.{region}.amazonaws.com",
        "id": region,
        "name": region,
        "region": region,
    }


def get_partition(cloud: Cloud, arguments: Properties) -> Properties:
    return {"dnsSuffix": "amazonaws.com", "id": "aws", "partition": "aws", "reverseDnsPrefix": "com.amazonaws"}


def get_policy_document(cloud: Cloud, arguments: Properties) -> Properties:
    """Made without the cloud: statements as an IAM policy's JSON text."""
    _only(arguments, "policyId", "statements", "version")
    document: Properties = {"Version": arguments.get("version", "2012-10-17")}
    if "policyId" in arguments:
        document["Id"] = arguments["policyId"]
    document["Statement"] = [_statement(s) for s in arguments.get("statements", [])]
    text = json.dumps(document, indent=2)
    minified = json.dumps(document, separators=(",", ":"))
    return {**arguments, "id": "policy", "json": text, "minifiedJson": minified, "version": document["Version"]}


def _statement(given: Properties) -> Properties:
    statement: Properties = {"Effect": given.get("effect", "Allow")}
    if "sid" in given:
        statement["Sid"] = given["sid"]
    for name, field in (
        ("actions", "Action"),
        ("notActions", "NotAction"),
        ("resources", "Resource"),
        ("notResources", "NotResource"),
    ):
        if values := given.get(name):
            statement[field] = values[0] if len(values) == 1 else sorted(values)
    for name, field in (("principals", "Principal"), ("notPrincipals", "NotPrincipal")):
        if principals := given.get(name):
            statement[field] = {p["type"]: _one(p["identifiers"]) for p in principals}
    conditions: dict[str, Properties] = {}
    for condition in given.get("conditions", []):
        conditions.setdefault(condition["test"], {})[condition["variable"]] = _one(condition["values"])
    return statement | ({"Condition": conditions} if conditions else {})


def _one(values: list[str]) -> str | list[str]:
    return values[0] if len(values) == 1 else values


def get_vpc(cloud: Cloud, arguments: Properties) -> Properties:
    _only(arguments, "cidrBlock", "default", "filters", "id", "tags")
    filters = _filters(arguments)
    if "cidrBlock" in arguments:
        filters.append({"Name": "cidr", "Values": [arguments["cidrBlock"]]})
    if "default" in arguments:
        filters.append({"Name": "is-default", "Values": [str(arguments["default"]).lower()]})
    request: Properties = {"Filters": filters} | ({"VpcIds": [arguments["id"]]} if "id" in arguments else {})
    found = listed(cloud.client("ec2").describe_vpcs, "Vpcs", **request)
    if len(found) != 1:
        raise ProviderError(f"getVpc: {len(found)} networks match; exactly one must")
    vpc = found[0]
    ident = vpc["VpcId"]
    return {
        "arn": f"arn:aws:ec2:{cloud.region}:{cloud.account}:vpc/{ident}",
        "cidrBlock": vpc["CidrBlock"],
        "default": vpc.get("IsDefault", False),
        "dhcpOptionsId": vpc.get("DhcpOptionsId", ""),
        "id": ident,
        "instanceTenancy": vpc.get("InstanceTenancy", "default"),
        "ownerId": vpc.get("OwnerId", ""),
        "region": cloud.region,
        "state": vpc.get("State", "available"),
        "tags": tag_map(cloud, vpc.get("Tags")),
    }


def get_subnets(cloud: Cloud, arguments: Properties) -> Properties:
    _only(arguments, "filters", "tags")
    subnets = cloud.client("ec2").describe_subnets(Filters=_filters(arguments))["Subnets"]
    ids = sorted(s["SubnetId"] for s in subnets)
    return {**arguments, "id": cloud.region, "ids": ids, "region": cloud.region, "tags": arguments.get("tags") or {}}


def get_subnet(cloud: Cloud, arguments: Properties) -> Properties:
    _only(arguments, "filters", "id", "tags", "vpcId", "availabilityZone")
    filters = _filters(arguments)
    for name, field in (("vpcId", "vpc-id"), ("availabilityZone", "availability-zone")):
        if name in arguments:
            filters.append({"Name": field, "Values": [arguments[name]]})
    request: Properties = {"Filters": filters} | ({"SubnetIds": [arguments["id"]]} if "id" in arguments else {})
    subnet = first(cloud.client("ec2").describe_subnets, "Subnets", **request)
    if subnet is None:
        raise ProviderError("getSubnet: no subnet matches")
    return {
        "arn": f"arn:aws:ec2:{cloud.region}:{cloud.account}:subnet/{subnet['SubnetId']}",
        "availabilityZone": subnet["AvailabilityZone"],
        "cidrBlock": subnet["CidrBlock"],
        "id": subnet["SubnetId"],
        "region": cloud.region,
        "tags": tag_map(cloud, subnet.get("Tags")),
        "vpcId": subnet["VpcId"],
    }


FUNCTIONS: dict[str, Function] = {
    "aws:ec2/getAmi:getAmi": get_ami,
    "aws:ec2/getSubnet:getSubnet": get_subnet,
    "aws:ec2/getSubnets:getSubnets": get_subnets,
    "aws:ec2/getVpc:getVpc": get_vpc,
    "aws:iam/getPolicyDocument:getPolicyDocument": get_policy_document,
    "aws:index/getAvailabilityZones:getAvailabilityZones": get_availability_zones,
    "aws:index/getCallerIdentity:getCallerIdentity": get_caller_identity,
    "aws:index/getPartition:getPartition": get_partition,
    "aws:index/getRegion:getRegion": get_region,
    "aws:ssm/getParameter:getParameter": get_parameter,
}
"""Functions by Pulumi's name."""
