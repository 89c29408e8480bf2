"""Route 53: zones and records."""

from __future__ import annotations

from localcloud.documents import Document, items
from localcloud.provider.aws.calls import listed, or_none, present
from localcloud.provider.aws.tags import tag_changes, tag_list, tag_map
from localcloud.provider.checks import conflicts, one_of
from localcloud.provider.resource import Change, Resource
from localcloud.provider.session import Cloud
from localcloud.provider.wire import Properties, sha1


class Zone(Resource):
    token = "aws:route53/zone:Zone"
    tagged = True
    force_new = frozenset({"name"})
    mutable = frozenset({"comment", "forceDestroy", "vpcs"})
    rules = (one_of("name"),)

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        networks = items(inputs, "vpcs")
        config = {"Comment": inputs.get("comment", "Managed by Pulumi"), "PrivateZone": bool(networks)}
        answer = cloud.client("route53").create_hosted_zone(
            Name=inputs["name"],
            CallerReference=sha1(inputs["name"] + str(id(inputs))),
            HostedZoneConfig=config,
            **present(VPC=_vpc(cloud, networks[0]) if networks else None),
        )
        return str(answer["HostedZone"]["Id"]).rpartition("/")[2]

    def after_create(self, cloud: Cloud, ident: str, inputs: Properties) -> None:
        client = cloud.client("route53")
        for network in items(inputs, "vpcs")[1:]:
            client.associate_vpc_with_hosted_zone(HostedZoneId=ident, VPC=_vpc(cloud, network))
        if inputs.get("tags"):
            kind = {"ResourceType": "hostedzone", "ResourceId": ident}
            client.change_tags_for_resource(AddTags=tag_list(inputs["tags"]), **kind)

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        client = cloud.client("route53")
        answer = or_none(client.get_hosted_zone, Id=ident)
        if answer is None:
            return None
        zone = answer["HostedZone"]
        tags = client.list_tags_for_resource(ResourceType="hostedzone", ResourceId=ident)["ResourceTagSet"]["Tags"]
        servers = answer.get("DelegationSet", {}).get("NameServers", [])
        return {
            "arn": f"arn:aws:route53:::hostedzone/{ident}",
            "comment": zone.get("Config", {}).get("Comment"),
            "name": zone["Name"].rstrip("."),
            "nameServers": servers,
            "primaryNameServer": servers[0] if servers else None,
            "vpcs": [{"vpcId": v["VPCId"], "vpcRegion": v["VPCRegion"]} for v in answer.get("VPCs", [])],
            "zoneId": ident,
            "tags": tag_map(cloud, tags),
        }

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        client = cloud.client("route53")
        if change.touches("comment"):
            client.update_hosted_zone_comment(Id=ident, Comment=change.new.get("comment", ""))
        if change.touches("vpcs"):
            old, new = items(change.old, "vpcs"), items(change.new, "vpcs")
            for network in [n for n in new if n not in old]:
                client.associate_vpc_with_hosted_zone(HostedZoneId=ident, VPC=_vpc(cloud, network))
            for network in [n for n in old if n not in new]:
                client.disassociate_vpc_from_hosted_zone(HostedZoneId=ident, VPC=_vpc(cloud, network))
        if change.touches("tags"):
            put, remove = tag_changes(change)
            client.change_tags_for_resource(
                ResourceType="hostedzone",
                ResourceId=ident,
                **({"AddTags": tag_list(put)} if put else {}),
                **({"RemoveTagKeys": remove} if remove else {}),
            )

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        or_none(cloud.client("route53").delete_hosted_zone, Id=ident)


def _vpc(cloud: Cloud, network: Properties) -> dict[str, str]:
    return {"VPCId": network["vpcId"], "VPCRegion": network.get("vpcRegion", cloud.region)}


class Record(Resource):
    token = "aws:route53/record:Record"
    force_new = frozenset({"name", "setIdentifier", "type", "zoneId"})
    mutable = frozenset({"aliases", "allowOverwrite", "records", "ttl"})
    enums = {
        "type": frozenset(
            {"A", "AAAA", "CAA", "CNAME", "DS", "HTTPS", "MX", "NAPTR", "NS", "PTR", "SOA", "SPF", "SRV", "SSHFP",
             "SVCB", "TLSA", "TXT"}
        )
    }  # fmt: skip
    rules = (one_of("aliases", "records"), conflicts("aliases", "ttl"))

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        self._change(cloud, inputs, "UPSERT" if inputs.get("allowOverwrite") else "CREATE")
        return f"{inputs['zoneId']}_{inputs['name']}_{inputs['type']}"

    def _change(self, cloud: Cloud, inputs: Properties, action: str) -> None:
        record: Properties = {"Name": inputs["name"], "Type": inputs["type"]}
        if aliases := inputs.get("aliases"):
            record["AliasTarget"] = {
                "DNSName": aliases[0]["name"],
                "EvaluateTargetHealth": aliases[0]["evaluateTargetHealth"],
                "HostedZoneId": aliases[0]["zoneId"],
            }
        else:
            record |= {"TTL": inputs.get("ttl", 300), "ResourceRecords": [{"Value": r} for r in inputs["records"]]}
        batch = {"Changes": [{"Action": action, "ResourceRecordSet": record}]}
        cloud.client("route53").change_resource_record_sets(HostedZoneId=inputs["zoneId"], ChangeBatch=batch)

    def _find(self, cloud: Cloud, state: Properties) -> Document | None:
        call = cloud.client("route53").list_resource_record_sets
        for record in listed(call, "ResourceRecordSets", HostedZoneId=state["zoneId"]):
            if record["Name"].rstrip(".") == state["name"].rstrip(".") and record["Type"] == state["type"]:
                return record
        return None

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        record = self._find(cloud, state)
        if record is None:
            return None
        live: Properties = {"fqdn": record["Name"].rstrip("."), "name": state["name"], "type": record["Type"]}
        if alias := record.get("AliasTarget"):
            return live | {
                "aliases": [
                    {
                        "name": alias["DNSName"].rstrip("."),
                        "zoneId": alias["HostedZoneId"],
                        "evaluateTargetHealth": alias["EvaluateTargetHealth"],
                    }
                ]
            }
        return live | {"ttl": record.get("TTL"), "records": [r["Value"] for r in record.get("ResourceRecords", [])]}

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        self._change(cloud, change.new, "UPSERT")

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        if self._find(cloud, state) is not None:
            self._change(cloud, state, "DELETE")
