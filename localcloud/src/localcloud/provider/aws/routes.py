"""EC2 routing: tables, what they belong to, and their routes."""

from __future__ import annotations

from localcloud.documents import items
from localcloud.provider.aws.calls import delete_when_free, first, listed, or_none, present
from localcloud.provider.aws.network import arn_of, is_network
from localcloud.provider.aws.tags import ec2_specification, tag_map, update_ec2_tags
from localcloud.provider.checks import one_of
from localcloud.provider.resource import Change, Resource
from localcloud.provider.session import Cloud
from localcloud.provider.wire import Properties, sha1


class RouteTable(Resource):
    token = "aws:ec2/routeTable:RouteTable"
    tagged = True
    force_new = frozenset({"vpcId"})

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        tags = ec2_specification("route-table", inputs.get("tags"))
        answer = cloud.client("ec2").create_route_table(VpcId=inputs["vpcId"], TagSpecifications=tags)
        return str(answer["RouteTable"]["RouteTableId"])

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        table = first(cloud.client("ec2").describe_route_tables, "RouteTables", RouteTableIds=[ident])
        return table and {
            "arn": arn_of(cloud, "route-table", ident),
            "ownerId": table.get("OwnerId"),
            "vpcId": table["VpcId"],
            "tags": tag_map(cloud, table.get("Tags")),
        }

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        update_ec2_tags(cloud, ident, change)

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        delete_when_free(cloud, ident, cloud.client("ec2").delete_route_table, RouteTableId=ident)


class RouteTableAssociation(Resource):
    token = "aws:ec2/routeTableAssociation:RouteTableAssociation"
    force_new = frozenset({"gatewayId", "subnetId"})
    mutable = frozenset({"routeTableId"})
    rules = (one_of("subnetId", "gatewayId"),)

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        target = present(SubnetId=inputs.get("subnetId"), GatewayId=inputs.get("gatewayId"))
        answer = cloud.client("ec2").associate_route_table(RouteTableId=inputs["routeTableId"], **target)
        return str(answer["AssociationId"])

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        call = cloud.client("ec2").describe_route_tables
        by_subnet = [{"Name": "association.subnet-id", "Values": [state.get("subnetId", "")]}]
        filters = by_subnet if "subnetId" in state else []
        for table in listed(call, "RouteTables", Filters=filters):
            for association in table["Associations"]:
                if association.get("SubnetId", "") == state.get("subnetId") and state.get("subnetId"):
                    return {"routeTableId": table["RouteTableId"], "subnetId": association["SubnetId"]}
                if association.get("RouteTableAssociationId") == ident:
                    return {"routeTableId": table["RouteTableId"], "gatewayId": association.get("GatewayId")}
        return None

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        cloud.client("ec2").replace_route_table_association(
            AssociationId=self._current(cloud, change.state) or ident, RouteTableId=change.new["routeTableId"]
        )

    def _current(self, cloud: Cloud, state: Properties) -> str | None:
        """The association's id of now: EC2 gives it a new one with each replacement, the engine keeps the first."""
        filters = [{"Name": "association.subnet-id", "Values": [state.get("subnetId", "")]}]
        table = first(cloud.client("ec2").describe_route_tables, "RouteTables", Filters=filters)
        for association in items(table, "Associations"):
            if association.get("SubnetId") == state.get("subnetId"):
                return str(association["RouteTableAssociationId"])
        return None

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        or_none(cloud.client("ec2").disassociate_route_table, AssociationId=self._current(cloud, state) or ident)


_DESTINATIONS = {
    "destinationCidrBlock": "DestinationCidrBlock",
    "destinationIpv6CidrBlock": "DestinationIpv6CidrBlock",
    "destinationPrefixListId": "DestinationPrefixListId",
}
_TARGETS = {
    "gatewayId": "GatewayId",
    "natGatewayId": "NatGatewayId",
    "networkInterfaceId": "NetworkInterfaceId",
    "vpcPeeringConnectionId": "VpcPeeringConnectionId",
}


class Route(Resource):
    token = "aws:ec2/route:Route"
    force_new = frozenset({"routeTableId", *_DESTINATIONS})
    mutable = frozenset(_TARGETS)
    rules = (one_of(*_DESTINATIONS), one_of(*_TARGETS), is_network("destinationCidrBlock"))

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        cloud.client("ec2").create_route(**_route(inputs, {**_DESTINATIONS, **_TARGETS}))
        destination = next(inputs[name] for name in _DESTINATIONS if name in inputs)
        return f"r-{inputs['routeTableId']}{int(sha1(destination)[:8], 16)}"

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        call = cloud.client("ec2").describe_route_tables
        table = first(call, "RouteTables", RouteTableIds=[state["routeTableId"]])
        for route in items(table, "Routes"):
            if all(route.get(field) == state[name] for name, field in _DESTINATIONS.items() if name in state):
                targets = {name: route[field] for name, field in _TARGETS.items() if route.get(field)}
                return {**targets, "origin": route.get("Origin"), "state": route.get("State")}
        return None

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        cloud.client("ec2").replace_route(**_route(change.new, {**_DESTINATIONS, **_TARGETS}))

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        or_none(cloud.client("ec2").delete_route, **_route(state, _DESTINATIONS))


def _route(inputs: Properties, fields: dict[str, str]) -> Properties:
    given = {field: inputs[name] for name, field in fields.items() if name in inputs}
    return {"RouteTableId": inputs["routeTableId"], **given}
