"""EC2 networks: VPC, subnets, gateways and addresses."""

from __future__ import annotations

import ipaddress
from typing import Any

from localcloud.aws.sdk import ClientError
from localcloud.documents import Document, items
from localcloud.provider.aws.calls import delete_when_free, first, is_absent, or_none, present
from localcloud.provider.aws.tags import ec2_specification, tag_map, update_ec2_tags
from localcloud.provider.checks import one_of
from localcloud.provider.errors import Failure
from localcloud.provider.resource import Change, Resource, Rule
from localcloud.provider.session import Cloud
from localcloud.provider.wire import UNKNOWN, Properties


def is_network(*names: str) -> Rule:
    """The named inputs are networks in CIDR form, without host bits."""

    def rule(given: Properties) -> list[Failure]:
        failures: list[Failure] = []
        for name in names:
            value = given.get(name)
            if value is None or value == UNKNOWN:
                continue
            try:
                ipaddress.ip_network(value)
            except ValueError as error:
                failures.append(Failure(path=name, reason=f"{value!r} is not a network in CIDR form: {error}"))
        return failures

    return rule


def arn_of(cloud: Cloud, kind: str, ident: str) -> str:
    return f"arn:aws:ec2:{cloud.region}:{cloud.account}:{kind}/{ident}"


class Vpc(Resource):
    token = "aws:ec2/vpc:Vpc"
    tagged = True
    force_new = frozenset({"cidrBlock", "instanceTenancy"})
    mutable = frozenset({"enableDnsHostnames", "enableDnsSupport"})
    enums = {"instanceTenancy": frozenset({"default", "dedicated"})}
    rules = (one_of("cidrBlock"), is_network("cidrBlock"))

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        answer = cloud.client("ec2").create_vpc(
            CidrBlock=inputs["cidrBlock"],
            InstanceTenancy=inputs.get("instanceTenancy", "default"),
            TagSpecifications=ec2_specification("vpc", inputs.get("tags")),
        )
        return str(answer["Vpc"]["VpcId"])

    def after_create(self, cloud: Cloud, ident: str, inputs: Properties) -> None:
        self._set_names(cloud, ident, inputs, frozenset(inputs))

    def _set_names(self, cloud: Cloud, ident: str, inputs: Properties, keys: frozenset[str]) -> None:
        # EC2 takes one attribute per call
        for key, field, default in (
            ("enableDnsSupport", "EnableDnsSupport", True),
            ("enableDnsHostnames", "EnableDnsHostnames", False),
        ):
            if key in keys:
                wanted = {"Value": inputs.get(key, default)}
                cloud.client("ec2").modify_vpc_attribute(VpcId=ident, **{field: wanted})

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        ec2 = cloud.client("ec2")
        vpc = first(ec2.describe_vpcs, "Vpcs", VpcIds=[ident])
        if vpc is None:
            return None
        here = [{"Name": "vpc-id", "Values": [ident]}]
        main = [*here, {"Name": "association.main", "Values": ["true"]}]
        table = first(ec2.describe_route_tables, "RouteTables", Filters=main)
        named = [*here, {"Name": "group-name", "Values": ["default"]}]
        group = first(ec2.describe_security_groups, "SecurityGroups", Filters=named)
        acl = first(ec2.describe_network_acls, "NetworkAcls", Filters=here)
        return {
            "arn": arn_of(cloud, "vpc", ident),
            "cidrBlock": vpc["CidrBlock"],
            "instanceTenancy": vpc.get("InstanceTenancy"),
            "ownerId": vpc.get("OwnerId"),
            "enableDnsSupport": _vpc_attribute(ec2, ident, "enableDnsSupport"),
            "enableDnsHostnames": _vpc_attribute(ec2, ident, "enableDnsHostnames"),
            "dhcpOptionsId": vpc.get("DhcpOptionsId"),
            "mainRouteTableId": table and table["RouteTableId"],
            "defaultRouteTableId": table and table["RouteTableId"],
            "defaultSecurityGroupId": group and group["GroupId"],
            "defaultNetworkAclId": acl and acl["NetworkAclId"],
            "tags": tag_map(cloud, vpc.get("Tags")),
        }

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        self._set_names(cloud, ident, change.new, change.keys)
        update_ec2_tags(cloud, ident, change)

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        delete_when_free(cloud, ident, cloud.client("ec2").delete_vpc, VpcId=ident)


def _vpc_attribute(ec2: Any, ident: str, name: str) -> bool:
    answer = ec2.describe_vpc_attribute(VpcId=ident, Attribute=name)
    return bool(answer[name[0].upper() + name[1:]]["Value"])


class Subnet(Resource):
    token = "aws:ec2/subnet:Subnet"
    tagged = True
    force_new = frozenset({"availabilityZone", "cidrBlock", "vpcId"})
    mutable = frozenset({"mapPublicIpOnLaunch"})
    rules = (one_of("cidrBlock"), is_network("cidrBlock"))

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        answer = cloud.client("ec2").create_subnet(
            VpcId=inputs["vpcId"],
            CidrBlock=inputs["cidrBlock"],
            TagSpecifications=ec2_specification("subnet", inputs.get("tags")),
            **present(AvailabilityZone=inputs.get("availabilityZone")),
        )
        return str(answer["Subnet"]["SubnetId"])

    def after_create(self, cloud: Cloud, ident: str, inputs: Properties) -> None:
        if "mapPublicIpOnLaunch" in inputs:
            self._set_public(cloud, ident, inputs)

    def _set_public(self, cloud: Cloud, ident: str, inputs: Properties) -> None:
        wanted = {"Value": inputs.get("mapPublicIpOnLaunch", False)}
        cloud.client("ec2").modify_subnet_attribute(SubnetId=ident, MapPublicIpOnLaunch=wanted)

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        subnet = first(cloud.client("ec2").describe_subnets, "Subnets", SubnetIds=[ident])
        return subnet and {
            "arn": arn_of(cloud, "subnet", ident),
            "availabilityZone": subnet["AvailabilityZone"],
            "availabilityZoneId": subnet.get("AvailabilityZoneId"),
            "cidrBlock": subnet["CidrBlock"],
            "vpcId": subnet["VpcId"],
            "ownerId": subnet.get("OwnerId"),
            "mapPublicIpOnLaunch": subnet.get("MapPublicIpOnLaunch", False),
            "tags": tag_map(cloud, subnet.get("Tags")),
        }

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        if change.touches("mapPublicIpOnLaunch"):
            self._set_public(cloud, ident, change.new)
        update_ec2_tags(cloud, ident, change)

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        delete_when_free(cloud, ident, cloud.client("ec2").delete_subnet, SubnetId=ident)


class InternetGateway(Resource):
    token = "aws:ec2/internetGateway:InternetGateway"
    tagged = True
    mutable = frozenset({"vpcId"})

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        tags = ec2_specification("internet-gateway", inputs.get("tags"))
        answer = cloud.client("ec2").create_internet_gateway(TagSpecifications=tags)
        return str(answer["InternetGateway"]["InternetGatewayId"])

    def after_create(self, cloud: Cloud, ident: str, inputs: Properties) -> None:
        if "vpcId" in inputs:
            cloud.client("ec2").attach_internet_gateway(InternetGatewayId=ident, VpcId=inputs["vpcId"])

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        call = cloud.client("ec2").describe_internet_gateways
        gateway = first(call, "InternetGateways", InternetGatewayIds=[ident])
        if gateway is None:
            return None
        attached: list[Document] = items(gateway, "Attachments") or [{}]
        return {
            "arn": arn_of(cloud, "internet-gateway", ident),
            "ownerId": gateway.get("OwnerId"),
            "vpcId": attached[0].get("VpcId"),
            "tags": tag_map(cloud, gateway.get("Tags")),
        }

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        if change.touches("vpcId"):
            self._detach(cloud, ident, change.old)
            self.after_create(cloud, ident, change.new)
        update_ec2_tags(cloud, ident, change)

    def _detach(self, cloud: Cloud, ident: str, state: Properties) -> None:
        if "vpcId" in state:
            call = cloud.client("ec2").detach_internet_gateway
            try:
                delete_when_free(cloud, ident, call, InternetGatewayId=ident, VpcId=state["vpcId"])
            except ClientError as error:
                if "Gateway.NotAttached" not in str(error):
                    raise

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        self._detach(cloud, ident, state)
        or_none(cloud.client("ec2").delete_internet_gateway, InternetGatewayId=ident)


class Eip(Resource):
    token = "aws:ec2/eip:Eip"
    tagged = True
    force_new = frozenset({"domain"})
    enums = {"domain": frozenset({"vpc"})}

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        tags = ec2_specification("elastic-ip", inputs.get("tags"))
        answer = cloud.client("ec2").allocate_address(Domain=inputs.get("domain", "vpc"), TagSpecifications=tags)
        return str(answer["AllocationId"])

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        address = first(cloud.client("ec2").describe_addresses, "Addresses", AllocationIds=[ident])
        return address and {
            "allocationId": ident,
            "arn": arn_of(cloud, "elastic-ip", ident),
            "associationId": address.get("AssociationId") or None,
            "domain": address.get("Domain"),
            "publicIp": address["PublicIp"],
            "privateIp": address.get("PrivateIpAddress") or None,
            "tags": tag_map(cloud, address.get("Tags")),
        }

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        update_ec2_tags(cloud, ident, change)

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        delete_when_free(cloud, ident, cloud.client("ec2").release_address, AllocationId=ident)


class NatGateway(Resource):
    token = "aws:ec2/natGateway:NatGateway"
    tagged = True
    force_new = frozenset({"allocationId", "connectivityType", "privateIp", "subnetId"})
    enums = {"connectivityType": frozenset({"private", "public"})}
    rules = (one_of("subnetId"),)

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        answer = cloud.client("ec2").create_nat_gateway(
            SubnetId=inputs["subnetId"],
            ConnectivityType=inputs.get("connectivityType", "public"),
            TagSpecifications=ec2_specification("natgateway", inputs.get("tags")),
            **present(AllocationId=inputs.get("allocationId"), PrivateIpAddress=inputs.get("privateIp")),
        )
        return str(answer["NatGateway"]["NatGatewayId"])

    def after_create(self, cloud: Cloud, ident: str, inputs: Properties) -> None:
        cloud.wait(f"{ident} to be available", lambda: (self._find(cloud, ident) or {}).get("State") == "available")

    def _find(self, cloud: Cloud, ident: str) -> Document | None:
        found = first(cloud.client("ec2").describe_nat_gateways, "NatGateways", NatGatewayIds=[ident])
        return found if found and found["State"] not in {"deleted", "deleting"} else None

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        gateway = self._find(cloud, ident)
        if gateway is None:
            return None
        addresses: list[Document] = items(gateway, "NatGatewayAddresses") or [{}]
        return {
            "subnetId": gateway["SubnetId"],
            "connectivityType": gateway.get("ConnectivityType"),
            "allocationId": addresses[0].get("AllocationId"),
            "publicIp": addresses[0].get("PublicIp"),
            "privateIp": addresses[0].get("PrivateIp"),
            "networkInterfaceId": addresses[0].get("NetworkInterfaceId"),
            "vpcId": gateway.get("VpcId"),
            "tags": tag_map(cloud, gateway.get("Tags")),
        }

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        update_ec2_tags(cloud, ident, change)

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        or_none(cloud.client("ec2").delete_nat_gateway, NatGatewayId=ident)
        cloud.wait(f"{ident} to be deleted", lambda: self._find(cloud, ident) is None)


class VpcEndpoint(Resource):
    token = "aws:ec2/vpcEndpoint:VpcEndpoint"
    tagged = True
    force_new = frozenset({"serviceName", "vpcEndpointType", "vpcId"})
    mutable = frozenset({"policy", "privateDnsEnabled", "routeTableIds", "securityGroupIds", "subnetIds"})
    enums = {"vpcEndpointType": frozenset({"Gateway", "GatewayLoadBalancer", "Interface"})}
    rules = (one_of("serviceName"),)

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        answer = cloud.client("ec2").create_vpc_endpoint(
            VpcId=inputs["vpcId"],
            ServiceName=inputs["serviceName"],
            VpcEndpointType=inputs.get("vpcEndpointType", "Gateway"),
            TagSpecifications=ec2_specification("vpc-endpoint", inputs.get("tags")),
            **present(
                PolicyDocument=inputs.get("policy"),
                PrivateDnsEnabled=inputs.get("privateDnsEnabled"),
                RouteTableIds=inputs.get("routeTableIds"),
                SecurityGroupIds=inputs.get("securityGroupIds"),
                SubnetIds=inputs.get("subnetIds"),
            ),
        )
        return str(answer["VpcEndpoint"]["VpcEndpointId"])

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        try:
            endpoint = first(cloud.client("ec2").describe_vpc_endpoints, "VpcEndpoints", VpcEndpointIds=[ident])
        except ClientError as error:
            if not is_absent(error):
                raise
            return None
        if endpoint is None or endpoint.get("State") in {"deleted", "deleting"}:
            return None
        return {
            "arn": arn_of(cloud, "vpc-endpoint", ident),
            "serviceName": endpoint["ServiceName"],
            "vpcEndpointType": endpoint["VpcEndpointType"],
            "vpcId": endpoint["VpcId"],
            "privateDnsEnabled": endpoint.get("PrivateDnsEnabled", False),
            "routeTableIds": endpoint.get("RouteTableIds") or [],
            "securityGroupIds": [g["GroupId"] for g in items(endpoint, "Groups")],
            "subnetIds": endpoint.get("SubnetIds") or [],
            "networkInterfaceIds": endpoint.get("NetworkInterfaceIds") or [],
            "dnsEntries": [
                {"dnsName": e.get("DnsName"), "hostedZoneId": e.get("HostedZoneId")}
                for e in items(endpoint, "DnsEntries")
            ],
            "state": endpoint.get("State"),
            "tags": tag_map(cloud, endpoint.get("Tags")),
        }

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        request: Properties = {}
        for name, field in (
            ("routeTableIds", "RouteTableIds"),
            ("securityGroupIds", "SecurityGroupIds"),
            ("subnetIds", "SubnetIds"),
        ):
            old, new = set(change.old.get(name, [])), set(change.new.get(name, []))
            request |= {f"Add{field}": sorted(new - old)} if new - old else {}
            request |= {f"Remove{field}": sorted(old - new)} if old - new else {}
        if change.touches("policy"):
            request["PolicyDocument"] = change.new.get("policy", "")
        if change.touches("privateDnsEnabled"):
            request["PrivateDnsEnabled"] = change.new.get("privateDnsEnabled", False)
        if request:
            cloud.client("ec2").modify_vpc_endpoint(VpcEndpointId=ident, **request)
        update_ec2_tags(cloud, ident, change)

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        or_none(cloud.client("ec2").delete_vpc_endpoints, VpcEndpointIds=[ident])
