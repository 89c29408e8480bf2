"""Checks of single values of an environment beyond their form: regions, secrets, networks, addresses, prices."""

import ipaddress
import re
from collections.abc import Iterator
from datetime import date, timedelta
from difflib import get_close_matches
from typing import Final
from urllib.parse import urlsplit

from gpufleet.domain import catalogue, regions
from gpufleet.domain.model import Cloud
from gpufleet.domain.rsa import KeyFormError, public_key
from gpufleet.domain.secrets import find_secrets
from gpufleet.settings.document.ledger import REMEDY, why_unverified
from gpufleet.settings.document.orders import secret_names_begin
from gpufleet.settings.environment import Settings
from gpufleet.settings.problems import Problem

_SECRETS: Final = {
    Cloud.AWS: (r"[A-Za-z0-9_.\-/]{1,1011}", "an SSM parameter"),
    Cloud.GCP: (r"[A-Za-z0-9_-]{1,255}", "a secret of Secret Manager"),
}
"""The name format of each secret store, and what a name refers to."""
_MAX_ORDER_KEYS: Final = 2
_MACHINES: Final = {
    Cloud.AWS: (r"[a-z][a-z0-9-]*\.[a-z0-9-]+", "m6i.large"),
    Cloud.GCP: (r"[a-z][a-z0-9]*-[a-z0-9-]+", "e2-medium"),
}
_BUCKETS: Final = {
    Cloud.AWS: r"(?:xn--|sthree-|amzn-s3-demo-).*|.*(?:-s3alias|--ol-s3|--x-s3|--table-s3)",
    Cloud.GCP: r"goog.*|.*(?:google|g00gle).*",
}
"""Bucket names that S3 and Cloud Storage reserve."""
ENDPOINTS: Final = (
    "autoscaling", "ec2", "ec2messages", "ecr.api", "ecr.dkr", "elasticloadbalancing", "events", "kms", "logs",
    "monitoring", "secretsmanager", "servicequotas", "sqs", "ssm", "ssmmessages", "sts",
)  # fmt: skip
"""AWS services that the fleet's software calls. Other service names are not checked."""
_WHOLE_PATH: Final = ("//", "/file:/")
"""Path prefixes of SQLite URLs with an absolute path, which refer to the same file from every directory."""
EMBEDDED: Final = "local"
"""Environment of the embedded cloud. Its ledger is in the clone in which its commands run."""
_GP3_IOPS: Final = (3000, 80_000)
_GP3_MIB_PER_SECOND: Final = (125, 2000)
_LARGEST_DISK_GIB: Final = 65_536
"""Size limit of EBS gp3 (since September 2025) and of Google Cloud's persistent disks, in GiB."""


def check(settings: Settings, root: str, today: date) -> Iterator[Problem]:
    """Yield the problems of single values of an environment. Other modules check pools."""
    yield from _region(settings, root)
    yield from _secret_names(settings, root)
    yield from _order_keys(settings, root)
    yield from _project(settings, root)
    yield from _bucket(settings, root)
    yield from _disks(settings, root)
    yield from _services(settings, root)
    yield from _existing_network(settings, root)
    yield from _control_machine(settings, root)
    yield from _urls(settings, root)
    yield from _jobs(settings, root)
    yield from _channel(settings, root)
    yield from _prices(settings, root, today)


def _region(settings: Settings, root: str) -> Iterator[Problem]:
    cloud, region = settings.cloud, settings.region
    if region and region not in regions.REGIONS[cloud]:
        yield Problem(
            path=f"{cloud}:region",
            wrong=f"is not a region of {cloud}",
            value=region,
            remedy=regions.hint(cloud, region),
        )


def _secret_names(settings: Settings, root: str) -> Iterator[Problem]:
    yield from _secret_name(settings, f"{root}.engine_key", settings.engine_key, "engine-key")
    path, name = f"{root}.orders.private_key", settings.orders.private_key
    if name == settings.engine_key:
        remedy = "use two secrets, because instances can read the engine key"
        yield Problem(path=path, wrong="is also the secret of engine_key", value=name, remedy=remedy)
        return
    yield from _secret_name(settings, path, name, "order-key")


def _secret_name(settings: Settings, path: str, name: str, customary: str) -> Iterator[Problem]:
    pattern, what = _SECRETS[settings.cloud]
    begin = secret_names_begin(settings.cloud, settings.environment)
    form = f"the name of {what} of the environment, for example {begin}{customary}"
    if kinds := find_secrets(name):
        # the value is not shown, because it may be a secret
        remedy = f"change the secret, store it in the cloud's secret store, and write {form}"
        yield Problem(path=path, wrong=f"looks like {kinds[0]}, and many people can read settings", remedy=remedy)
    elif not re.fullmatch(pattern, name) or not name.startswith(begin) or name == begin:
        wrong = "is not the name of a secret of the environment"
        yield Problem(path=path, wrong=wrong, value=name, remedy=f"write {form}")


def _order_keys(settings: Settings, root: str) -> Iterator[Problem]:
    keys, path = settings.orders.public_keys, f"{root}.orders.public_keys"
    if not 1 <= len(keys) <= _MAX_ORDER_KEYS:
        remedy = "write the key in use (`gpufleet bootstrap` prints it) and, during a key rotation, also the new key"
        yield Problem(path=path, wrong="must contain one or two keys", value=len(keys), remedy=remedy)
        return
    known: list[str] = []
    for index, text in enumerate(keys):
        try:
            fingerprint = public_key(text).fingerprint
        except KeyFormError as error:
            # the value is not shown, because it may be a private key
            private = "PRIVATE KEY" in text
            new = "create a new key pair, because this private key is exposed"
            remedy = new if private else "write the key that `gpufleet bootstrap` prints"
            yield Problem(path=f"{path}.{index}", wrong=str(error), remedy=remedy)
            continue
        if fingerprint in known:
            yield Problem(path=f"{path}.{index}", wrong="repeats a key", remedy="remove it")
        known.append(fingerprint)


def _project(settings: Settings, root: str) -> Iterator[Problem]:
    if settings.shared_project and settings.cloud is not Cloud.GCP:
        remedy = "remove it: on AWS, permissions are limited by the tags of the environment"
        yield Problem(path=f"{root}.shared_project", wrong="is only for Google Cloud", remedy=remedy)


def _bucket(settings: Settings, root: str) -> Iterator[Problem]:
    if re.fullmatch(_BUCKETS[settings.cloud], settings.bucket.name):
        yield Problem(
            path=f"{root}.bucket.name",
            wrong=f"is a name that {settings.cloud} reserves",
            value=settings.bucket.name,
            remedy="choose another name",
        )
    if not settings.bucket.publishers:
        return
    path = f"{root}.bucket.publishers"
    if settings.cloud is not Cloud.AWS:
        remedy = "remove it: on Google Cloud, grant roles on the bucket only to publishers"
        yield Problem(path=path, wrong="is only for AWS", remedy=remedy)
    elif settings.bucket.existing:
        remedy = "remove it, and let the bucket's owner write the policy (docs/security.md shows it)"
        yield Problem(path=path, wrong="is only for a bucket that the program creates", remedy=remedy)
    elif not any(f"::{settings.account}:" in publisher for publisher in settings.bucket.publishers):
        remedy = "add the role that runs `pulumi up`: otherwise S3 refuses the next fleet document"
        yield Problem(path=path, wrong=f"does not contain a role of account {settings.account}", remedy=remedy)


def _disks(settings: Settings, root: str) -> Iterator[Problem]:
    machines, path = settings.machines, f"{root}.machines"
    sizes = [(f"{path}.disk_gib", machines.disk_gib)]
    if settings.control:
        sizes.append((f"{root}.control.data_gib", settings.control.data_gib))
    for where, gib in sizes:
        if gib > _LARGEST_DISK_GIB:
            remedy = f"write {_LARGEST_DISK_GIB} or less"
            yield Problem(path=where, wrong="is larger than a disk can be", value=gib, remedy=remedy)
    if settings.cloud is not Cloud.AWS:
        return
    rates: dict[str, tuple[int, tuple[int, int]]] = {"disk_iops": (machines.disk_iops, _GP3_IOPS)}
    rates["disk_mib_per_second"] = (machines.disk_mib_per_second, _GP3_MIB_PER_SECOND)
    for name, (value, (least, most)) in rates.items():
        if not least <= value <= most:
            wrong = f"is outside the range of a gp3 volume, {least} to {most}"
            yield Problem(path=f"{path}.{name}", wrong=wrong, value=value, remedy="write a value in the range")
    if _GP3_MIB_PER_SECOND[1] >= machines.disk_mib_per_second > machines.disk_iops / 4 >= _GP3_IOPS[0] / 4:
        yield Problem(
            path=f"{path}.disk_mib_per_second",
            wrong=f"is more than a quarter of disk_iops {machines.disk_iops}, which gp3 does not allow",
            value=machines.disk_mib_per_second,
            remedy=f"lower it to {machines.disk_iops // 4}, or raise disk_iops",
        )


def _services(settings: Settings, root: str) -> Iterator[Problem]:
    network, path = settings.network, f"{root}.network.private_services"
    if network.kind != "made" or not network.private_services:
        return
    if settings.cloud is not Cloud.AWS:
        remedy = "remove it; Google Cloud's private access does not need a list"
        yield Problem(path=path, wrong="is only for AWS", value=list(network.private_services), remedy=remedy)
        return
    for index, name in enumerate(network.private_services):
        if name in network.private_services[:index]:
            yield Problem(path=f"{path}.{index}", wrong="is named twice", value=name, remedy="name it once")
        elif name not in ENDPOINTS and (alike := get_close_matches(name, ENDPOINTS, n=2, cutoff=0.75)):
            remedy = f"did you mean {' or '.join(alike)}?"
            yield Problem(path=f"{path}.{index}", wrong="is not a known service", value=name, remedy=remedy)


def _existing_network(settings: Settings, root: str) -> Iterator[Problem]:
    network, path = settings.network, f"{root}.network"
    if network.kind != "given":
        return
    named = {"id": network.id, **{f"subnets.{zone}": subnet for zone, subnet in network.subnets.items()}}
    seen: set[str] = set()
    for place, name in named.items():
        word = "vpc" if place == "id" else "subnet"
        if not name.strip() or (settings.cloud is Cloud.AWS and not re.fullmatch(rf"{word}-[0-9a-f]+", name)):
            example = f"write its id, for example {word}-0123456789abcdef0"
            remedy = example if settings.cloud is Cloud.AWS else "write its name"
            yield Problem(path=f"{path}.{place}", wrong=f"is not a {word}", value=name, remedy=remedy)
        elif name in seen and settings.cloud is Cloud.AWS:
            remedy = "write the subnet of that zone, because a subnet is in one zone"
            yield Problem(path=f"{path}.{place}", wrong="is given for two zones", value=name, remedy=remedy)
        seen.add(name)


def _control_machine(settings: Settings, root: str) -> Iterator[Problem]:
    if settings.control is None:
        return
    pattern, example = _MACHINES[settings.cloud]
    path, name = f"{root}.control.machine_type", settings.control.machine_type
    if not re.fullmatch(pattern, name):
        wrong = f"is not a machine type of {settings.cloud}"
        yield Problem(path=path, wrong=wrong, value=name, remedy=f"write a machine type, for example {example}")
    elif any(machine.name == name for machine in catalogue.machines(settings.cloud)):
        remedy = f"choose a small machine type without accelerators, for example {example}"
        wrong = "has accelerators, and the control host does not use them"
        yield Problem(path=path, wrong=wrong, value=name, remedy=remedy)


def _urls(settings: Settings, root: str) -> Iterator[Problem]:
    web = ("http", "https")
    schemes = {"prometheus_url": web, "router_url": web, "ledger_url": ("sqlite", "postgresql")}
    for name, allowed in schemes.items():
        url: str | None = getattr(settings, name)
        if url is None:
            continue
        try:
            parts = urlsplit(url)
            known = parts.scheme in allowed and (bool(parts.hostname) or parts.scheme == "sqlite")
            password = parts.password
            scattered = parts.scheme == "sqlite" and not parts.path.startswith(_WHOLE_PATH)
        except ValueError:
            known, password, scattered = False, None, False
        if password:
            remedy = "leave it out, and set PGPASSWORD or a passfile for the processes"
            wrong = "contains a password, and many people can read settings"
            yield Problem(path=f"{root}.{name}", wrong=wrong, remedy=remedy)
        elif not known:
            remedy = f"write a URL such as {' or '.join(f'{scheme}://…' for scheme in allowed)}"
            yield Problem(path=f"{root}.{name}", wrong="is not a valid URL", value=url, remedy=remedy)
        elif scattered and settings.environment != EMBEDDED:
            wrong = "is a relative path: commands in different folders would use different ledgers and leases"
            remedy = "write four slashes, for example sqlite:////var/lib/gpu-fleet/ledger.db"
            yield Problem(path=f"{root}.{name}", wrong=wrong, value=url, remedy=remedy)
        elif name == "ledger_url" and (why := why_unverified(url)):
            # the fleet document contains it, and readers of a document in a bucket cannot open such a ledger
            yield Problem(path=f"{root}.{name}", wrong=why, value=url, remedy=REMEDY)


def _jobs(settings: Settings, root: str) -> Iterator[Problem]:
    """The job of GPU exporters had another name in release 0.1. A rule that reads it finds no metrics, so it never
    acts. A Prometheus of the user may still have such a job.
    """
    for index, rule in enumerate(settings.orphans):
        if rule.gpu_job == "dcgm" and settings.prometheus_url is None:
            yield Problem(
                path=f"{root}.orphans.{index}.gpu_job",
                wrong="is a job that the control host's Prometheus does not have since release 0.2",
                value=rule.gpu_job,
                remedy="write gpu_job: accelerator, or remove it",
            )


def _channel(settings: Settings, root: str) -> Iterator[Problem]:
    if settings.notify is None:
        return
    path, channel = f"{root}.notify.slack_channel", settings.notify.slack_channel
    if find_secrets(channel):
        remedy = "change the webhook, because it is a secret; write the name of the channel, for example #gpu-cost"
        yield Problem(path=path, wrong="is a webhook, with which anyone can post", remedy=remedy)
    elif not re.fullmatch(r"#?[^\s#/:]{1,80}", channel):
        remedy = "write its name, for example #gpu-cost"
        yield Problem(path=path, wrong="is not a channel", value=channel, remedy=remedy)


def _prices(settings: Settings, root: str, today: date) -> Iterator[Problem]:
    seen: set[str] = set()
    for index, price in enumerate(settings.prices):
        path = f"{root}.prices.{index}"
        cloud, _, rest = price.sku.partition(":")
        if cloud not in {*Cloud} or not re.fullmatch(r"[a-z0-9]+(:[\w.-]+)+", rest):
            remedy = f"write {settings.cloud}:…; `gpufleet plan-cost` lists each sku without a price"
            yield Problem(path=f"{path}.sku", wrong="is not a sku", value=price.sku, remedy=remedy)
            continue
        if price.sku in seen:
            yield Problem(path=f"{path}.sku", wrong="has two prices", value=price.sku, remedy="remove one of them")
        seen.add(price.sku)
        if not price.source.strip():
            remedy = "write where the price is from: a list, a contract or an estimate"
            yield Problem(path=f"{path}.source", wrong="is empty", value=price.source, remedy=remedy)
        if _day(price.as_of) > today + timedelta(days=1):
            remedy = "write the day on which you read the price"
            yield Problem(path=f"{path}.as_of", wrong="is in the future", value=price.as_of, remedy=remedy)
        service, _, of = rest.partition(":")
        if cloud == settings.cloud and service in ("ec2", "compute"):
            yield from _misspelled_machine_type(f"{path}.sku", settings.cloud, price.sku, of.partition(":")[0])


def _misspelled_machine_type(path: str, cloud: Cloud, sku: str, name: str) -> Iterator[Problem]:
    """Report a machine type that resembles one in the catalogue. The catalogue does not contain small machines."""
    known = [machine.name for machine in catalogue.machines(cloud) if machine.name[0] == name[:1]]
    if name not in known and (alike := get_close_matches(name, known, n=2, cutoff=0.85)):
        remedy = f"did you mean {' or '.join(alike)}?"
        wrong = f"contains {name!r}, which is not a machine type of {cloud} in the catalogue"
        yield Problem(path=path, wrong=wrong, value=sku, remedy=remedy)


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text[:10])
    except ValueError:
        return date.min  # another check reports it


def client_networks(path: str, networks: tuple[str, ...]) -> Iterator[Problem]:
    """Report problems of client networks: a network of all addresses, or a duplicate."""
    parsed: list[ipaddress.IPv4Network] = []
    for index, client in enumerate(networks):
        where = f"{path}.{index}"
        try:
            network = ipaddress.ip_network(client)
        except ValueError:
            yield Problem(
                path=where, wrong="is not a network", value=client, remedy="write a CIDR such as 10.0.0.0/8"
            )
            continue
        if network.prefixlen == 0:
            wrong = "contains all addresses of the internet"
            yield Problem(path=where, wrong=wrong, value=client, remedy="write the networks of your clients")
        elif isinstance(network, ipaddress.IPv6Network):
            remedy = "write the IPv4 networks of your clients"
            yield Problem(path=where, wrong="is IPv6, which the router does not support", value=client, remedy=remedy)
        elif network.prefixlen < _WIDEST_CLIENT:
            wrong = f"contains {2 ** (32 - network.prefixlen):,} addresses, a large part of the internet"
            yield Problem(path=where, wrong=wrong, value=client, remedy="write the networks of your clients")
        elif "/" not in client:
            yield Problem(path=where, wrong="has no prefix length", value=client, remedy=f"write {network}")
        elif within := next((known for known in parsed if network.subnet_of(known)), None):
            wrong = "is named twice" if within == network else f"is part of {within}, which is named already"
            yield Problem(path=where, wrong=wrong, value=client, remedy="remove it")
        else:
            parsed.append(network)


_WIDEST_CLIENT: Final = 8
"""Prefix length of 10.0.0.0/8, the largest private network."""
