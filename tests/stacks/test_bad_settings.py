"""Invalid settings: each produces exactly the error line given here, and no line contains a secret."""

import re
from collections.abc import Iterator
from datetime import date
from typing import Any

import pytest

from tests.fixtures.stacks.settings_files import AWS, FLEET, GCP, REMOVED, changed, problems

GITHUB, HUB, OPENAI = "ghp_" + "b" * 36, "hf_" + "a" * 34, "sk-" + "c" * 40
AMAZON, WEBHOOK = "AKIA" + "I" * 16, "https://hooks.slack.com/services/" + "T000/B000/XXXX"
BLOCK = {"starts": "2026-12-01T11:30:00Z", "ends": "2026-12-01T11:45:00Z"}
PRICE = {"sku": "aws:route53:zone", "usd_per_hour": "1", "source": "l", "as_of": "2026-11-01"}
HOURS = {"days": ["mon"], "start": "05:00", "end": "08:00", "target": 3}
TERM = {"starts": "2026-12-01T00:00:00Z", "ends": "2027-11-01T00:00:00Z", "source": "x", "as_of": "y"}
P5 = {
    "pools.0.capacity.reserved.0.machine_type": "p5.48xlarge",
    "pools.0.capacity.reserved.0.existing": "cr-0123456789abcdef0",
}
LMDEPLOY, DYNAMO = (
    {"kind": kind, "image": f"registry.example/{kind}@sha256:" + "a" * 64, "version": version}
    for kind, version in (("lmdeploy", "0.16.0"), ("dynamo", "1.6.1"))
)
TRITON = {**LMDEPLOY, "kind": "triton", "version": "2.71.0"}
GATE = {"machines.gate_image": "registry.example/haproxy@sha256:" + "a" * 64}
NAME_FORM = "expected up to 20 lowercase letters, digits and '-', beginning with a letter and not ending with '-'"
BAD: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("spare above max", AWS, {"pools.0.spare": 50},
     "pools.0.spare: is above max 12 (is 50); lower it"),
    ("on-demand above the pool's max", AWS, {"pools.0.capacity.on_demand.max": 50},
     "pools.0.capacity.on_demand.max: is above the pool's max 12 (is 50); lower it, or raise the "
     "pool's max"),
    ("empty engine key", AWS, {"engine_key": ""},
     "engine_key: is not the name of a secret of the environment (is ''); write the name of an SSM parameter of "
     "the environment, for example /gpu-fleet/prod/engine-key"),
    ("engine key secret value", AWS, {"engine_key": GITHUB},
     "engine_key: looks like a GitHub token, and many people can read settings; change the secret, store it in "
     "the cloud's secret store, and write the name of an SSM parameter of the environment, for example "
     "/gpu-fleet/prod/engine-key"),
    ("gcp order key slash", GCP, {"orders.private_key": "/gpu-fleet/prod/x"},
     "orders.private_key: is not the name of a secret of the environment (is '/gpu-fleet/prod/x'); write the "
     "name of a secret of Secret Manager of the environment, for example gpu-fleet-prod-order-key"),
    ("secret of another environment", AWS, {"orders.private_key": "/gpu-fleet/dev/order-key"},
     "orders.private_key: is not the name of a secret of the environment (is '/gpu-fleet/dev/order-key'); write "
     "the name of an SSM parameter of the environment, for example /gpu-fleet/prod/order-key"),
    ("env HF token", AWS, {"pools.0.engine.env": {"HF_TOKEN": HUB}},
     "pools.0.engine.env.HF_TOKEN: looks like a Hugging Face token; remove it and change the secret; engines "
     "load models from the bucket and need no secret"),
    ("env api key", AWS, {"pools.0.engine.env": {"OPENAI_API_KEY": OPENAI}},
     "pools.0.engine.env.OPENAI_API_KEY: looks like an OpenAI-style key; remove it and change the secret; "
     "engines load models from the bucket and need no secret"),
    ("env of the engine's key", AWS, {"pools.0.engine.env": {"VLLM_API_KEY": "hunter2"}},
     "pools.0.engine.env.VLLM_API_KEY: is a variable for a secret; remove it and change the secret; engines load "
     "models from the bucket and need no secret"),
    ("env aws key", AWS, {"pools.0.engine.env": {"X": AMAZON}},
     "pools.0.engine.env.X: looks like an AWS access key; remove it and change the secret; engines load models "
     "from the bucket and need no secret"),
    ("env name invalid", AWS, {"pools.0.engine.env": {"A B": "x"}},
     "pools.0.engine.env.A B: is not a name of a variable (is 'A B'); write letters, digits and underscores, and "
     "do not begin with a digit"),
    ("env newline", AWS, {"pools.0.engine.env": {"A": "x\nB=y"}},
     "pools.0.engine.env.A: contains a control character (is 'x\\nB=y'); write one line of text"),
    ("env empty name", AWS, {"pools.0.engine.env": {"": "x"}},
     "pools.0.engine.env.: is not a name of a variable (is ''); write letters, digits and underscores, and do "
     "not begin with a digit"),
    ("arg that reads code", AWS, {"pools.0.engine.args": ["--middleware", "mine.Middleware"]},
     "pools.0.engine.args.0: is not allowed in settings (is '--middleware'); remove it or write a flag that "
     "docs/security.md lists"),
    ("arg shortened", AWS, {"pools.0.engine.args": ["--max-model", "8192"]},
     "pools.0.engine.args.0: is not allowed in settings (is '--max-model'); remove it or write "
     "--max-model-len or --max-num-seqs or --max-loras"),
    ("arg of an unsafe format", AWS, {"pools.0.engine.args": ["--load-format", "pt"]},
     "pools.0.engine.args.1: 'pt' is not safe to load (is 'pt'); write one of auto, dummy, fastsafetensors, "
     "runai_streamer, safetensors"),
    ("env that opens pages", AWS, {"pools.0.engine.env": {"VLLM_SERVER_DEV_MODE": "1"}},
     "pools.0.engine.env.VLLM_SERVER_DEV_MODE: is not allowed in settings (is 'VLLM_SERVER_DEV_MODE'); "
     "remove it"),
    ("engine without a release of its own", AWS, {**GATE, "pools.0.engine": {**LMDEPLOY, "version": None}},
     "pools.0.engine.version: is missing, and LMDeploy does not report its release; write the release of LMDeploy in "
     "the image, for example 0.15.0"),
    ("release that lacks the arguments", AWS, {**GATE, "pools.0.engine": {**DYNAMO, "version": "0.9.0"}},
     "pools.0.engine.version: is before 1.0.0, the first release of Dynamo that the fleet can start (is '0.9.0'); "
     "use a newer image"),
    ("number of a container", AWS, {**GATE, "pools.0.engine": {**TRITON, "version": "26.07"}},
     "pools.0.engine.version: is not a release (is '26.07'); write the release of Triton in the image, for example "
     "2.61.0"),
    ("release with a line break", AWS, {**GATE, "pools.0.engine": {**DYNAMO, "version": "1.6.1\nx"}},
     "pools.0.engine.version: is not a release (is '1.6.1\\nx'); write the release of Dynamo in the image, for "
     "example 1.0.0"),
    ("value that Triton cannot give to vLLM", AWS,
     {**GATE, "pools.0.engine": {**TRITON, "args": ["--max-model-len", "8k"]}},
     "pools.0.engine.args: expected a whole number, got '8k' (is '--max-model-len 8k'); write digits only"),
    ("flag of another engine", AWS, {**GATE, "pools.0.engine": {**LMDEPLOY, "args": ["--max-model-len", "8192"]}},
     "pools.0.engine.args.0: is not allowed in settings (is '--max-model-len'); remove it or write "
     "--language-model-only"),
    ("split of LMDeploy over more GPUs", AWS, {**GATE, "pools.0.engine": {**LMDEPLOY, "args": ["--tp", "8"]}},
     "pools.0.engine.args.0: splits the model over 8 GPUs, and g6e.xlarge has 1 (is '--tp'); choose machine types "
     "with at least 8 GPUs, or split the model over fewer"),
    ("name that Triton cannot store", AWS, {**GATE, "pools.0.engine": TRITON, "pools.0.served_name": "meta/llama"},
     "pools.0.served_name: is not a name under which Triton serves a model (is 'meta/llama'); write letters, digits "
     "and . _ - and begin with a letter or a digit"),
    ("arg api key value", AWS, {"pools.0.engine.args": ["--seed", HUB]},
     "pools.0.engine.args.1: looks like a Hugging Face token; remove it and change the secret; engines load "
     "models from the bucket and need no secret"),
    ("unknown type on spot", GCP, {"pools.0.capacity.spot.machine_types": ["a4y-highgpu-8g"]},
     "pools.0.capacity.spot.machine_types.0: no gcp machine type 'a4y-highgpu-8g' in the catalogue (is "
     "'a4y-highgpu-8g'); did you mean a4-highgpu-8g or a3-highgpu-8g or a2-highgpu-8g?"),
    ("arm on spot", GCP, {"pools.0.capacity.spot.machine_types": ["a4x-highgpu-4g"]},
     "pools.0.capacity.spot.machine_types.0: has arm64 CPUs, which pools cannot launch yet (is 'a4x-highgpu-4g'); "
     "choose a machine type without a note in docs/reference/machines.md"),
    ("fraction on spot", AWS, {"pools.0.capacity.spot.machine_types": ["g6f.xlarge"]},
     "pools.0.capacity.spot.machine_types.0: has a fraction of a GPU and needs the vGPU driver, which pools cannot "
     "launch yet (is 'g6f.xlarge'); choose a machine type without a note in docs/reference/machines.md"),
    ("tpu on spot", GCP, {"pools.0.capacity.spot.machine_types": ["ct6e-standard-4t"]},
     "pools.0.capacity: has machine types with NVIDIA GPUs and Google Cloud TPUs (is 'g2-standard-12, "
     "ct6e-standard-4t, g2-standard-16'); write a pool for each: the engine's image and the machine image are of one "
     "kind"),
    ("neuron on spot", AWS, {"pools.0.capacity.spot.machine_types": ["trn1.32xlarge"]},
     "pools.0.capacity: has machine types with NVIDIA GPUs and AWS Neuron devices (is 'g6e.xlarge, trn1.32xlarge, "
     "g6.2xlarge, g5.2xlarge'); write a pool for each: the engine's image and the machine image are of one kind"),
    ("gaudi on spot", AWS, {"pools.0.capacity.spot.machine_types": ["dl1.24xlarge"]},
     "pools.0.capacity.spot.machine_types.0: machine type 'dl1.24xlarge' has Intel Gaudi accelerators, which this "
     "project has no metrics contract for (is 'dl1.24xlarge'); choose a machine type of the catalogue"),
    ("weights NaN", AWS, {"models.0.weights_gib": float("nan")},
     "models.0.weights_gib: expected a finite number, got nan"),
    ("weights inf", AWS, {"models.0.weights_gib": float("inf")},
     "models.0.weights_gib: expected a finite number, got inf"),
    ("weights huge", AWS, {"models.0.weights_gib": 1e+300},
     "models.0.weights_gib: expected 10000 or less, got 1e+300"),
    ("max 100000", AWS, {"pools.0.max": 100000},
     "pools.0.max: expected 10000 or less, got 100000"),
    ("disk_gib huge", AWS, {"machines.disk_gib": 1000000000},
     "machines.disk_gib: is larger than a disk can be (is 1000000000); write 65536 or less"),
    ("disk iops 100", AWS, {"machines.disk_iops": 100},
     "machines.disk_iops: is outside the range of a gp3 volume, 3000 to 80000 (is 100); write a value in the "
     "range"),
    ("disk throughput 5000", AWS, {"machines.disk_mib_per_second": 5000},
     "machines.disk_mib_per_second: is outside the range of a gp3 volume, 125 to 2000 (is 5000); write a value "
     "in the range"),
    ("min bool", AWS, {"pools.0.min": True},
     "pools.0.min: expected a whole number, got true"),
    ("pools null", AWS, {"pools": None},
     "pools: expected a list"),
    ("pools map", AWS, {"pools": {"chat": {}}},
     "pools: expected a list, got {'chat': {}}"),
    ("region other cloud", AWS, {"/aws:region": "us-central1"},
     "/aws:region: is not a region of aws (is 'us-central1'); choose a region of aws: us-central1 is a region "
     "of gcp"),
    ("region gcp with aws", GCP, {"/gcp:region": "us-east-1"},
     "/gcp:region: is not a region of gcp (is 'us-east-1'); choose a region of gcp: us-east-1 is a region of aws"),
    ("region unknown aws", AWS, {"/aws:region": "us-est-1"},
     "/aws:region: is not a region of aws (is 'us-est-1'); did you mean us-west-1 or us-east-1 or us-west-2?"),
    ("region number", AWS, {"/aws:region": 5},
     "/aws:region: must be text (is 5); write one region, such as us-east-1"),
    ("region list", AWS, {"/aws:region": ["us-east-1"]},
     "/aws:region: must be text (is ['us-east-1']); write one region, such as us-east-1"),
    ("region none", AWS, {"/aws:region": None},
     "/aws:region: is missing; write the region there, next to gpu-fleet:fleet"),
    ("region spaces", AWS, {"/aws:region": " us-east-1"},
     "/aws:region: is not a region of aws (is ' us-east-1'); did you mean us-east-1 or us-west-1 or us-east-2?"),
    ("unknown key other", AWS, {"/gpu-fleet:flet": {}},
     "/gpu-fleet:flet: is not a known setting; did you mean gpu-fleet:fleet?"),
    ("typo key", AWS, {"pols": []},
     "pols: is not a known setting (is []); did you mean pools?"),
    ("account wrong", AWS, {"account": "11112222333"},
     "account: is not an account of aws (is '11112222333'); write 12 digits, in quotes"),
    ("account arabic digits", AWS, {"account": "١١١١٢٢٢٢٣٣٣٣"},
     "account: is not an account of aws (is '١١١١٢٢٢٢٣٣٣٣'); write 12 digits, in quotes"),
    ("cyrillic pool", AWS, {"pools.0.name": "сhat"},
     f"pools.0.name: {NAME_FORM}, got 'сhat'"),
    ("trailing newline pool", AWS, {"pools.0.name": "chat\n"},
     f"pools.0.name: {NAME_FORM}, got 'chat\\n'"),
    ("trailing dash pool", AWS, {"pools.0.name": "chat-"},
     f"pools.0.name: {NAME_FORM}, got 'chat-'"),
    ("trailing dash env", AWS, {"environment": "prod-"},
     f"environment: {NAME_FORM.replace('20', '16')}, got 'prod-'"),
    ("bucket xn--", AWS, {"bucket.name": "xn--models"},
     "bucket.name: is a name that aws reserves (is 'xn--models'); choose another name"),
    ("bucket suffix", AWS, {"bucket.name": "models-s3alias"},
     "bucket.name: is a name that aws reserves (is 'models-s3alias'); choose another name"),
    ("bucket goog", GCP, {"bucket.name": "goog-models"},
     "bucket.name: is a name that gcp reserves (is 'goog-models'); choose another name"),
    ("bucket google", GCP, {"bucket.name": "my-google-models"},
     "bucket.name: is a name that gcp reserves (is 'my-google-models'); choose another name"),
    ("cidr ipv6", AWS, {"network.cidr": "fd00::/64"},
     "network.cidr: is not a network (is 'fd00::/64'); write the first address and the prefix length, for "
     "example 10.40.0.0/16"),
    ("cidr /8 aws", AWS, {"network.cidr": "10.0.0.0/8"},
     "network.cidr: has a size that a VPC cannot have (is '10.0.0.0/8'); write a network of /16 to /28"),
    ("cidr /32", AWS, {"network.cidr": "10.0.0.0/32"},
     "network.cidr: has a size that a VPC cannot have (is '10.0.0.0/32'); write a network of /16 to /28"),
    ("cidr 0", AWS, {"network.cidr": "0.0.0.0/0"},
     "network.cidr: is not a private network (is '0.0.0.0/0'); use a part of 10.0.0.0/8, 172.16.0.0/12 or "
     "192.168.0.0/16"),
    ("link-local network", AWS, {"network.cidr": "169.254.0.0/16"},
     "network.cidr: is not a private network (is '169.254.0.0/16'); use a part of 10.0.0.0/8, 172.16.0.0/12 or "
     "192.168.0.0/16"),
    ("client ::/0", AWS, {"control.client_networks": ["::/0"]},
     "control.client_networks.0: contains all addresses of the internet (is '::/0'); write the networks of your "
     "clients"),
    ("client /2", AWS, {"control.client_networks": ["64.0.0.0/2"]},
     "control.client_networks.0: contains 1,073,741,824 addresses, a large part of the internet (is "
     "'64.0.0.0/2'); write the networks of your clients"),
    ("client host bits", AWS, {"control.client_networks": ["10.0.0.1/8"]},
     "control.client_networks.0: is not a network (is '10.0.0.1/8'); write a CIDR such as 10.0.0.0/8"),
    ("client twice", AWS, {"control.client_networks": ["10.0.0.0/8", "10.0.0.0/8"]},
     "control.client_networks.1: is named twice (is '10.0.0.0/8'); remove it"),
    ("client overlap", AWS, {"control.client_networks": ["10.0.0.0/8", "10.1.0.0/16"]},
     "control.client_networks.1: is part of 10.0.0.0/8, which is named already (is '10.1.0.0/16'); remove it"),
    ("client ipv6", AWS, {"control.client_networks": ["fd00::/8"]},
     "control.client_networks.0: is IPv6, which the router does not support (is 'fd00::/8'); write the IPv4 "
     "networks of your clients"),
    ("client no prefix", AWS, {"control.client_networks": ["10.0.0.5"]},
     "control.client_networks.0: has no prefix length (is '10.0.0.5'); write 10.0.0.5/32"),
    ("zone prefix as wide as the network", AWS, {"network.zone_prefix": 16},
     "network.zone_prefix: is too short: 3 subnets for zones and one for internet access do not fit into "
     "10.42.0.0/16 (is 16); raise it, or widen cidr"),
    ("private_services unknown", AWS, {"network.private_services": ["sssm"]},
     "network.private_services.0: is not a known service (is 'sssm'); did you mean ssm?"),
    ("private_services twice", AWS, {"network.private_services": ["ssm", "ssm"]},
     "network.private_services.1: is named twice (is 'ssm'); name it once"),
    ("private_services on gcp", GCP, {"network.private_services": ["ssm"]},
     "network.private_services: is only for AWS (is ['ssm']); remove it; Google Cloud's private access does not "
     "need a list"),
    ("control gcp machine", AWS, {"control.machine_type": "e2-small"},
     "control.machine_type: is not a machine type of aws (is 'e2-small'); write a machine type, for example "
     "m6i.large"),
    ("control gpu machine", AWS, {"control.machine_type": "p5.48xlarge"},
     "control.machine_type: has accelerators, and the control host does not use them (is 'p5.48xlarge'); choose a "
     "small machine type without accelerators, for example m6i.large"),
    ("drain deadline 0", AWS, {"pools.0.drain_deadline": "0s"},
     "pools.0.drain_deadline: must be above 0s (is '0s'); write the time that running requests may take, for "
     "example 90s"),
    ("drain deadline neg", AWS, {"pools.0.drain_deadline": "-5s"},
     "pools.0.drain_deadline: '-5s' is not a duration: write a whole number and s, m, h or d, such as 90s or "
     "30m"),
    ("drain deadline 100d", AWS, {"pools.0.drain_deadline": "100d"},
     "pools.0.drain_deadline: is longer than a lifecycle hook of AWS can wait, two hours less one minute (is "
     "'100d'); write 119m or less"),
    ("drain deadline longer than a hook", AWS, {"pools.0.drain_deadline": "3h"},
     "pools.0.drain_deadline: is longer than a lifecycle hook of AWS can wait, two hours less one minute (is "
     "'3h'); write 119m or less"),
    ("drain deadline int", AWS, {"pools.0.drain_deadline": 90},
     "pools.0.drain_deadline: '90' is not a duration: write a whole number and s, m, h or d, such as 90s or "
     "30m (is 90)"),
    ("drain deadline huge", AWS, {"pools.0.drain_deadline": "99999999999999999d"},
     "pools.0.drain_deadline: '99999999999999999d' is too long: write at most 9 digits and s, m, h or d"),
    ("idle window 0", AWS, {"pools.0.watchdogs.idle.window": "0s"},
     "pools.0.watchdogs.idle.window: must be above 0s (is '0s'); write the time for which an instance must be "
     "idle, for example 30m"),
    ("idle window shorter than its engine's", AWS,
     {"pools.0.engine": {"kind": "sglang", "image": f"registry.example/sglang@sha256:{'a' * 64}"},
      "pools.0.watchdogs.idle.window": "59s"},
     "pools.0.watchdogs.idle.window: is too short: the metrics of SGLang prove idleness over 1m or more (is "
     "'59s'); write 1m or more"),
    ("idle coverage 2", AWS, {"pools.0.watchdogs.idle.coverage": 2},
     "pools.0.watchdogs.idle.coverage: expected 1 or less, got 2"),
    ("idle coverage nan", AWS, {"pools.0.watchdogs.idle.coverage": float("nan")},
     "pools.0.watchdogs.idle.coverage: expected 1 or less, got nan"),
    ("waiting nan", AWS, {"pools.0.watchdogs.scale.waiting_per_replica_above": float("nan")},
     "pools.0.watchdogs.scale.waiting_per_replica_above: expected a finite number, got nan"),
    ("waiting inf", AWS, {"pools.0.watchdogs.scale.waiting_per_replica_above": float("inf")},
     "pools.0.watchdogs.scale.waiting_per_replica_above: expected a finite number, got inf"),
    ("price ceil", AWS, {"pools.0.watchdogs.spot.price_ceiling": "-1"},
     "pools.0.watchdogs.spot.price_ceiling: must be a finite number, 0 or more and below "
     "1,000,000,000,000 (is '-1')"),
    ("price ceil NaN", AWS, {"pools.0.watchdogs.spot.price_ceiling": "NaN"},
     "pools.0.watchdogs.spot.price_ceiling: expected a finite number, got 'NaN'"),
    ("price ceil 100", AWS, {"pools.0.watchdogs.spot.price_ceiling": "100"},
     "pools.0.watchdogs.spot.price_ceiling: is above 1, the on-demand price; it is a share of that price (is "
     "'100'); write a share from 0 to 1, for example \"0.9\""),
    ("schedule tz", AWS, {"pools.0.watchdogs.scale.schedule": [{**HOURS, "timezone": "Europe/Berln"}]},
     "pools.0.watchdogs.scale.schedule.0.timezone: 'Europe/Berln' is not a time zone: write a name such as "
     "Europe/Berlin or UTC"),
    ("schedule 25:00", AWS, {"pools.0.watchdogs.scale.schedule": [{**HOURS, "start": "25:00"}]},
     "pools.0.watchdogs.scale.schedule.0.start: expected a time as HH:MM, from 00:00 to 23:59, got '25:00'"),
    ("schedule days none", AWS, {"pools.0.watchdogs.scale.schedule": [{**HOURS, "days": []}]},
     "pools.0.watchdogs.scale.schedule.0.days: expected at least 1 entry, got []"),
    ("schedule day bad", AWS, {"pools.0.watchdogs.scale.schedule": [{**HOURS, "days": ["monday"]}]},
     "pools.0.watchdogs.scale.schedule.0.days.0: expected 'mon', 'tue', 'wed', 'thu', 'fri', 'sat' or 'sun', "
     "got 'monday'"),
    ("notify channel empty", AWS, {"notify.slack_channel": ""},
     "notify.slack_channel: is not a channel (is ''); write its name, for example #gpu-cost"),
    ("notify webhook secret", AWS, {"notify.slack_channel": WEBHOOK},
     "notify.slack_channel: is a webhook, with which anyone can post; change the webhook, because it is a "
     "secret; write the name of the channel, for example #gpu-cost"),
    ("budget exp", AWS, {"budget.usd_per_month": "1e400"},
     "budget.usd_per_month: must be a finite number, 0 or more and below 1,000,000,000,000 (is '1e400')"),
    ("budget nan", AWS, {"budget.usd_per_month": "NaN"},
     "budget.usd_per_month: expected a finite number, got 'NaN'"),
    ("budget neg", AWS, {"budget.usd_per_month": "-3"},
     "budget.usd_per_month: must be a finite number, 0 or more and below 1,000,000,000,000 (is '-3')"),
    ("budget comma", AWS, {"budget.usd_per_month": "24,000"},
     "budget.usd_per_month: expected a number in quotes, such as \"0.25\", or a whole number, got '24,000'"),
    ("budget bool", AWS, {"budget.usd_per_month": True},
     "budget.usd_per_month: expected a number in quotes, such as \"0.25\", or a whole number, got true"),
    ("budgets both", AWS, {"budgets": [{"pool": "chat", "team": "x", "usd_per_month": "5"}]},
     "budgets.0: name a pool or a team, and not both"),
    ("budgets twice", AWS, {"budgets": [{"pool": "chat", "usd_per_month": "5"}] * 2},
     "budgets.1: is a second budget for the same pool or team (is 'chat'); remove one of them"),
    ("price sku unknown", AWS, {"prices": [{**PRICE, "sku": "aws:ec2:g6e.xlage:spot"}]},
     "prices.0.sku: contains 'g6e.xlage', which is not a machine type of aws in the catalogue (is "
     "'aws:ec2:g6e.xlage:spot'); did you mean g6e.xlarge or g6e.8xlarge?"),
    ("price sku nocloud", AWS, {"prices": [{**PRICE, "sku": "banana"}]},
     "prices.0.sku: is not a sku (is 'banana'); write aws:…; `gpufleet plan-cost` lists each sku without a price"),
    ("price future", AWS, {"prices": [{**PRICE, "as_of": "2099-11-01"}]},
     "prices.0.as_of: is in the future (is '2099-11-01'); write the day on which you read the price"),
    ("price twice", AWS, {"prices": [PRICE, PRICE]},
     "prices.1.sku: has two prices (is 'aws:route53:zone'); remove one of them"),
    ("price source empty", AWS, {"prices": [{**PRICE, "source": ""}]},
     "prices.0.source: is empty (is ''); write where the price is from: a list, a contract or an estimate"),
    ("commit block reservation unknown", AWS, {"commitments": {"blocks":
     [{**TERM, "ends": "2026-11-01T00:00:00Z", "reservation": "cr-1", "instances": 1, "upfront_usd": "5"}]}},
     "commitments.blocks.0: ends 2026-11-01 00:00:00+00:00 is not after starts 2026-12-01 00:00:00+00:00"),
    ("commit rates unk", AWS, {"commitments": {"spends":
     [{**TERM, "name": "n", "usd_per_hour": "5", "rates": {"g6e.xlage": "1"}}]}},
     "commitments.spends.0.rates.g6e.xlage: no aws machine type 'g6e.xlage' in the catalogue (is "
     "'g6e.xlage'); did you mean g6e.xlarge or g6e.8xlarge or g6e.4xlarge?"),
    ("grid factor without a source", AWS, {"carbon": {"grams_per_kwh": "379"}}, "carbon.source: is missing"),
    ("grid factor with an empty source", AWS, {"carbon": {"grams_per_kwh": "379", "source": " "}},
     "carbon.source: is empty; write the list and the year that state the factor (is ' ')"),
    ("grid factor in milligrams", AWS, {"carbon": {"grams_per_kwh": "379000", "source": "a list"}},
     "carbon.grams_per_kwh: expected 3000 or less, got '379000'"),
    ("PUE below 1", AWS, {"carbon": {"grams_per_kwh": "379", "source": "a list", "pue": "0.9"}},
     "carbon.pue: expected 1 or more, got '0.9'"),
    ("model source creds", AWS, {"models.0.source": "hf://user:pass@org/name"},
     "models.0.source: contains more than a location; remove user names, passwords and `..` from it"),
    ("model source dotdot", AWS, {"models.0.source": "s3://bucket/../x"},
     "models.0.source: contains more than a location; remove user names, passwords and `..` from it"),
    ("served_name empty", AWS, {"pools.0.served_name": ""},
     "pools.0.served_name: is not a name that requests can use (is ''); write letters, digits and . _ / : - "
     "without spaces, and begin with a letter or digit"),
    ("served_name begins with a slash", AWS, {"pools.0.served_name": "/chat"},
     "pools.0.served_name: is not a name that requests can use (is '/chat'); write letters, digits and . _ / : - "
     "without spaces, and begin with a letter or digit"),
    ("served_name quotes", AWS, {"pools.0.served_name": "a b\n"},
     "pools.0.served_name: is not a name that requests can use (is 'a b\\n'); write letters, digits and . _ / : "
     "- without spaces, and begin with a letter or digit"),
    ("adapter name with a space", AWS, {"pools.0.adapters": {"a b": "chat-70b"}},
     "pools.0.adapters.a b: is not a name that requests can use (is 'a b'); write letters, digits and . _ / : - "
     "without spaces, and begin with a letter or digit"),
    ("adapter of an unknown model", AWS, {"pools.0.adapters": {"sql": "chat-sql"}},
     "pools.0.adapters.sql: is not one of the models chat-70b, chat-8b (is 'chat-sql'); write one of them, or add "
     "it to models"),
    ("adapter is the model", AWS, {"pools.0.adapters": {"sql": "chat-8b"}},
     "pools.0.adapters.sql: is the model of pool chat itself (is 'chat-8b'); write the name of an adapter"),
    ("adapter named as a pool's model", AWS, {"pools.0.adapters": {"chat-70b": "chat-70b"}},
     "pools.0.adapters.chat-70b: is also the served name of pool chat-large (is 'chat-70b'); write another name"),
    ("adapter of two pools with different models", AWS,
     {"pools.0.adapters": {"sql": "chat-70b"}, "pools.1.adapters": {"sql": "chat-8b"}},
     "pools.1.adapters.sql: is also an adapter of pool chat, with another model (is 'sql'); write another name"),
    ("too many adapters", AWS, {"pools.0.adapters": {f"a{n}": "chat-70b" for n in range(33)}},
     "pools.0.adapters: has 33 adapters, and an instance loads at most 32; use several pools"),
    ("adapter of SGLang without its model", AWS,
     {"pools.0.engine.kind": "sglang", "pools.0.engine.args": [], "pools.0.adapters": {"sql": "chat-70b"}},
     "pools.0.adapters.sql: this engine selects an adapter by the served name, a colon, and the adapter's own name "
     "(is 'sql'); write chat-8b:sql"),
    ("adapters as flags", AWS, {"pools.0.engine.args": ["--lora-modules", "sql=/tmp/x"]},
     "pools.0.engine.args.0: is set by the node agent (is '--lora-modules'); remove it from the settings"),
    ("canary other model same served name", AWS, {"pools.1.served_name": "chat-8b"},
     "pools.1.served_name: is also the served name of pool chat, which serves chat-8b, not chat-70b (is "
     "'chat-8b'); write another name, or serve the same model in both pools"),
    ("team_split cyc", AWS, {"pools.0.team_split": "nope"},
     "pools.0.team_split: expected 'engine-seconds', got 'nope'"),
    ("engine typo", AWS, {"pools.0.engine.imge": "x"},
     "pools.0.engine.imge: is not a known setting (is 'x'); did you mean image?"),
    ("tp more than gpus", AWS, {"pools.0.engine.args": ["--tensor-parallel-size", "8"]},
     "pools.0.engine.args.0: splits the model over 8 GPUs, and g6e.xlarge has 1 (is '--tensor-parallel-size'); "
     "choose machine types with at least 8 GPUs, or split the model over fewer"),
    ("tp of more digits than Python reads", AWS, {"pools.0.engine.args": ["--tensor-parallel-size", "9" * 5000]},
     "pools.0.engine.args.0: splits the model over 999999999 GPUs, and g6e.xlarge has 1 (is "
     "'--tensor-parallel-size'); choose machine types with at least 999999999 GPUs, or split the model over fewer"),
    ("ledger url with password", AWS, {"ledger_url": "postgresql://u:secretpw@h/db"},
     "ledger_url: contains a password, and many people can read settings; leave it out, and set PGPASSWORD or a "
     "passfile for the processes"),
    ("ledger url junk", AWS, {"ledger_url": "banana"},
     "ledger_url: is not a valid URL (is 'banana'); write a URL such as sqlite://… or postgresql://…"),
    ("ledger url of each folder", AWS, {"ledger_url": "sqlite:///ledger.db"},
     "ledger_url: is a relative path: commands in different folders would use different ledgers and leases (is "
     "'sqlite:///ledger.db'); write four slashes, for example sqlite:////var/lib/gpu-fleet/ledger.db"),
    ("ledger url of each process", AWS, {"ledger_url": "sqlite://"},
     "ledger_url: is a relative path: commands in different folders would use different ledgers and leases (is "
     "'sqlite://'); write four slashes, for example sqlite:////var/lib/gpu-fleet/ledger.db"),
    ("reserved existing bad id", AWS, {"pools.0.capacity.reserved.0.existing": "banana"},
     "pools.0.capacity.reserved.0.existing: is not a valid reservation id (is 'banana'); write its id, for example "
     "cr-0123456789abcdef0"),
    ("reserved existing empty", AWS, {"pools.0.capacity.reserved.0.existing": ""},
     "pools.0.capacity.reserved.0.existing: is not a valid reservation id (is ''); write its id, for example "
     "cr-0123456789abcdef0"),
    ("reserved twice existing", AWS, {"pools.0.capacity.reserved.0.existing": "cr-0123456789abcdef0",
     "pools.1.capacity.reserved.0.existing": "cr-0123456789abcdef0"},
     "pools.1.capacity.reserved.0.existing: is already used by pool chat (is 'cr-0123456789abcdef0'); use each "
     "reservation in one pool"),
    ("ends time", AWS, {"pools.0.capacity.reserved.0.ends": "2027-01-01T10:00:00Z"},
     "pools.0.capacity.reserved.0.ends: expected a date as YYYY-MM-DD, for example 2027-06-01, "
     "got '2027-01-01T10:00:00Z'"),
    ("cloud gcp in aws file", AWS, {"cloud": "gcp"},
     "cloud: is gcp, but the file sets aws:region (is 'gcp'); write cloud: aws, or start from a "
     "settings file for gcp"),
    ("cloud missing", AWS, {"cloud": REMOVED},
     "cloud: is missing"),
    ("cloud list", AWS, {"cloud": ["aws"]},
     "cloud: expected 'aws' or 'gcp', got ['aws']"),
    ("capacity typo", AWS, {"pools.0.capacity.ondemand": {}},
     "pools.0.capacity.ondemand: is not a known setting (is {}); did you mean on_demand?"),
    ("engine key with newline", AWS, {"engine_key": "/gpu-fleet/prod/a\n"},
     "engine_key: is not the name of a secret of the environment (is '/gpu-fleet/prod/a\\n'); write the name of "
     "an SSM parameter of the environment, for example /gpu-fleet/prod/engine-key"),
    ("unknown setting deep near", AWS, {"pools.0.capacity.spot.machine_type": ["g6e.xlarge"]},
     "pools.0.capacity.spot.machine_type: is not a known setting (is ['g6e.xlarge']); did you mean machine_types?"),
    ("block that is over as it begins", AWS, {**P5, "pools.0.capacity.reserved.0.block": BLOCK},
     "pools.0.capacity.reserved.0.block.ends: leaves no time to serve: AWS begins to terminate instances 30 "
     "minutes before it (is '2026-12-01T11:45:00+00:00'); write both as the cloud shows them"),
    ("block of a machine type that is not sold so", AWS,
     {"pools.0.capacity.reserved.0.existing": "cr-0123456789abcdef0",
      "pools.0.capacity.reserved.0.block": {**BLOCK, "ends": "2026-12-02T11:30:00Z"}},
     "pools.0.capacity.reserved.0.machine_type: is not sold as a Capacity Block (is 'g6e.xlarge'); choose one of "
     "p4d.*, p4de.*, p5.*, p5e.*, p5en.*, p6-b200.*, p6-b300.*, or remove the block"),
]  # fmt: skip
"""Description, file, changes and expected line. A path from the root starts with a slash."""


@pytest.mark.parametrize(("config", "changes", "expected"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_an_error_is_one_line(config: dict[str, Any], changes: dict[str, Any], expected: str) -> None:
    assert problems(changed(config, changes)) == [
        expected.removeprefix("/") if expected[0] == "/" else f"{FLEET}.{expected}"
    ]


@pytest.mark.parametrize("engine", [LMDEPLOY, DYNAMO, TRITON], ids=lambda engine: engine["kind"])
def test_engines_behind_a_gate_are_accepted(engine: dict[str, Any]) -> None:
    assert problems(changed(AWS, {**GATE, "pools.0.engine": engine})) == []


def test_a_switch_is_not_a_secret_whatever_its_name() -> None:
    switches = {"HF_HUB_DISABLE_IMPLICIT_TOKEN": "1", "TOKENIZERS_PARALLELISM": "false"}
    assert problems(changed(AWS, {"pools.0.engine.env": switches})) == []


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"engine_key": HUB}, id="token in place of its name"),
        pytest.param({"pools.0.engine.env": {"A": OPENAI, "DB_PASSWORD": "hunter2"}}, id="environment"),
        pytest.param({"pools.0.engine.args": ["--x", GITHUB]}, id="argument"),
        pytest.param({"notify.slack_channel": WEBHOOK}, id="webhook"),
        pytest.param({"ledger_url": "postgresql://u:hunter2@h/db"}, id="password in a URL"),
        pytest.param({"pools.0.engine.hf_token": HUB}, id="unknown setting"),
    ],
)
def test_a_secret_is_refused_and_not_shown(changes: dict[str, Any]) -> None:
    lines = "\n".join(problems(changed(AWS, changes)))
    assert lines
    assert not [value for value in (GITHUB, HUB, OPENAI, WEBHOOK, "hunter2") if value in lines]


@pytest.mark.parametrize("value", [HUB, "9" * 100_000], ids=["a secret", "a long text"])
def test_a_message_that_quotes_the_value_shows_no_secret_and_stays_short(value: str) -> None:
    (line,) = problems(changed(AWS, {"pools.0.drain_deadline": value}))
    assert line.startswith(f"{FLEET}.pools.0.drain_deadline: ")
    assert value not in line
    assert len(line) < 400


@pytest.mark.parametrize(
    ("changes", "paths"),
    [
        pytest.param({"pools.0.max": "12", "pools.1.spare": 20_000}, ["pools.0.max", "pools.1.spare"], id="pools"),
        pytest.param({"models.0.source": 0, "pools.1.min": -1}, ["models.0.source", "pools.1.min"], id="model"),
        pytest.param({"cloud": "azure", "pools.1.min": -1}, ["cloud", "pools.1.min"], id="cloud"),
        pytest.param({"network": 5, "/aws:region": 5}, ["network", "aws:region"], id="network and region"),
        pytest.param({"bucket": REMOVED, "pools.1.min": -1}, ["bucket", "pools.1.min"], id="bucket"),
        pytest.param({"pools.0": "chat", "pools.1.min": -1}, ["pools.0", "pools.1.min"], id="pool that is not a map"),
        pytest.param(
            {"pools.0.watchdogs.idle.window": 5, "pools.0.watchdogs.scale.down_after": "x", "pools.1.min": -1},
            ["pools.0.watchdogs.idle.window", "pools.0.watchdogs.scale.down_after", "pools.1.min"], id="three",
        ),
        pytest.param({"pools.0.spare": 50, "engine_key": ""}, ["pools.0.spare", "engine_key"], id="two checks"),
        pytest.param({"pools.0.ownr": "me", "pools.0.owner": REMOVED}, ["pools.0.ownr", "pools.0.owner"], id="slip"),
        pytest.param({"cloud": "gcp"}, ["cloud"], id="the file of another cloud is one mistake"),
    ],
)  # fmt: skip
def test_all_form_errors_or_all_value_errors_are_reported_together(changes: dict[str, Any], paths: list[str]) -> None:
    found = [line.split(": ")[0].removeprefix(f"{FLEET}.") for line in problems(changed(AWS, changes))]
    assert sorted(found) == sorted(paths)


def _paths(value: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    if path:
        yield ".".join(path)
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in entries:
        if "." not in str(key):
            yield from _paths(one, (*path, str(key)))


OF_A_LIBRARY = re.compile(
    "nput should|instance of|valid dictionary|after validation|pydantic|match pattern|tuple|datetime\\."
)


@pytest.mark.parametrize("config", [AWS, GCP], ids=["aws", "gcp"])
@pytest.mark.parametrize(
    "value", [None, True, "sixty", "", -1, float("nan"), [1], {"x": 1}, date(2026, 11, 1)], ids=repr
)
def test_errors_never_quote_the_validation_library(config: dict[str, Any], value: Any) -> None:
    shown: set[str] = set()
    for path in _paths(config[FLEET]):
        shown.update(problems(changed(config, {path: value})))
    assert len(shown) > 50
    assert [line for line in shown if OF_A_LIBRARY.search(line)] == []
