"""The steps, in the product's own commands, the same on both clouds. Windows are seconds here, from the settings
of `aws-local` and `gcp-local`."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from localcloud.lifecycle.environment import credentials_of
from localcloud.lifecycle.parts import CONTROL_HOST
from localcloud.lifecycle.selected_cloud import stack_of

from gpufleet.console.exporter import LEAST_COVERED
from gpufleet.domain.decisions import Action, Reason
from gpufleet.domain.model import Cloud
from gpufleet.toolchain.folders import find_folders
from scripts.demo import control_host, observe, secrets
from scripts.demo.recompute import recompute
from scripts.demo.stage import Done, Stage, StoryError
from scripts.demo.traffic import Counted, Traffic

ACTION: Final = re.compile(r"^(resize|mark|end|replace|unmark) \S+: ")
"""A line of a watchdog that says what it did."""
BUSY: Final = r"^@ |ing \(\d+s\)|^\s*$|history and configuration|remove the stack completely"
"""Lines of Pulumi that only say that something is on its way."""
DOLLARS: Final = "gpufleet_spend_"
"""Parts of queries for values that need LEAST_COVERED in the ledger, longer than most demos take."""


def run_story(stage: Stage) -> None:
    """The story from `local up` to the report. Ends what it measures with; `farewell` is the last step."""
    _bring_up(stage)
    _provision(stage)
    _boot(stage)
    traffic = Traffic(host=CONTROL_HOST, port=8080, model="chat", clients=stage.cast.clients)
    try:
        _serve(stage, traffic)
        _preempt(stage, traffic)
        _end_idle(stage)
        if stage.replaces_control_host:
            control_host.replace_in_the_middle(stage, traffic)
    finally:
        counted = traffic.stop()
    _count_requests(stage, counted)
    _preview(stage)
    _report(stage)


def _bring_up(stage: Stage) -> None:
    apis = "AWS" if stage.cloud is Cloud.AWS else "Google Cloud"
    stage.title(
        f"The embedded cloud: {apis} APIs, instance metadata, Slack on loopback; real Prometheus, real HAProxy"
    )
    chosen = () if stage.cloud is Cloud.AWS else ("--cloud", stage.cloud.value)
    stage.run("gpufleet", "local", "up", *chosen)
    # each start of the cloud has a token of its own
    credentials = credentials_of(find_folders(stage.environment, stage.root))
    stage.environment = {**stage.environment, **credentials}
    os.environ.update(credentials)
    stage.run("gpufleet", "local", "status")


def _provision(stage: Stage) -> None:
    stack = stack_of(stage.cloud)
    stage.title(f"pulumi up: the real engine runs the production program with the settings of {stack}")
    done = stage.run(
        "pulumi",
        "up",
        "--yes",
        "--non-interactive",
        "--skip-preview",
        "--policy-pack",
        "policies",
        *stage.settings,
        hide=BUSY,
    )
    outputs = stage.ask("pulumi", "stack", "output", "--json").json()
    stage.fact("fleet_url", outputs["fleet_url"])
    stage.fact("up_seconds", round(done.seconds, 1), f"the fleet document is at {outputs['fleet_url']}")


def _boot(stage: Stage) -> None:
    stage.title("Instances boot: user data, the node agent by its digest, the model onto local disk, the engine")
    took = stage.wait(
        "every replica is up in HAProxy", observe.ready_servers(stage, stage.cast.served), stage.cast.wait_s
    )
    stage.fact("boot_seconds", round(took, 1))
    stage.run("gpufleet", "router", "status")
    for one in observe.instances():
        stage.note(
            f"{one['id']} {one['pool']:<5} {one['kind']:<8} {one['zone']} {one['address']}: {observe.boot_of(one)}"
        )
    stage.wait("every agent has identified its engine", _unidentified, stage.cast.wait_s)
    engines = {one["pool"]: observe.engine_of(one) for one in observe.instances()}
    texts = ", ".join(f"{pool} runs {engine}" for pool, engine in sorted(engines.items()))
    stage.fact("engines", engines, f"engines, as their agents identify them: {texts}")
    stage.fact("instances", {pool: len(observe.instances(pool)) for pool in stage.cast.served})
    stage.fact("reserved", sum(one["kind"] == "reserved" for one in observe.instances("chat")))
    stage.fact("spot_zones", sorted({one["zone"] for one in observe.instances("chat") if one["kind"] == "spot"}))
    stage.wait("Prometheus has found every instance", lambda: _all_scraped(stage), stage.cast.wait_s)
    stage.fact("scraped", _scraped(), "Prometheus found them in its targets file: engine, DCGM and agent answer")


def _unidentified() -> str | None:
    unknown = [one["id"] for one in observe.instances() if observe.engine_of(one) is None]
    return f"unknown: {', '.join(unknown)}" if unknown else None


def _scraped() -> dict[str, int]:
    found = observe.query('count by (job) (up{instance_id!=""} == 1)')
    return {one["metric"]["job"]: int(one["value"][1]) for one in found}


def _all_scraped(stage: Stage) -> str | None:
    seen, wanted = _scraped(), sum(stage.cast.served.values())
    missing = {job: seen.get(job, 0) for job in ("engine", "accelerator", "node") if seen.get(job, 0) < wanted}
    return f"targets up: {missing} of {wanted}" if missing else None


def _serve(stage: Stage, traffic: Traffic) -> None:
    stage.title("OpenAI-style chat requests through HAProxy: chat gets them, batch gets none")
    before = _requests(stage)
    traffic.start()
    url = "http://127.16.0.10:8080/v1/chat/completions"
    stage.note(f"{stage.cast.clients} clients send chat requests to {url}")
    stage.wait("60 requests are answered", lambda: _answered(traffic, 60), stage.cast.wait_s)
    # the router's status is of its last pass, so it may be behind what the clients counted
    stage.wait("the router has counted them", lambda: _counted(_gained(stage, before), 60), stage.cast.wait_s)
    gained = _gained(stage, before)
    stage.fact("requests_by_pool", gained, f"requests so far: chat {gained['chat']}, batch {gained['batch']}")
    if gained["batch"]:
        raise StoryError(f"batch got {gained['batch']} requests that were meant for chat")
    stage.run("gpufleet", "watch", "cost", codes=(0, 1))


def _answered(traffic: Traffic, wanted: int) -> str | None:
    counted = traffic.counted()
    return (
        None if counted.answered >= wanted else f"{counted.answered} are, {counted.failed} failed {counted.failures}"
    )


def _counted(gained: Mapping[str, int], wanted: int) -> str | None:
    return None if sum(gained.values()) >= wanted else f"it counted {sum(gained.values())} of {wanted}"


def _gained(stage: Stage, before: Mapping[str, int]) -> dict[str, int]:
    return {pool: count - before[pool] for pool, count in _requests(stage).items()}


def _requests(stage: Stage) -> dict[str, int]:
    pools = observe.router_pools(stage)
    return {
        pool: sum(int(server.get("requests") or 0) for server in pools.get(pool, [])) for pool in stage.cast.served
    }


def _preempt(stage: Stage, traffic: Traffic) -> None:
    stage.title("Spot loss: the instance drains, on-demand replaces it and is terminated when spot returns")
    stage.run("gpufleet", "watch", "spot", codes=(0, 3))
    stage.note("a policy acts only after an operator has seen a dry run of it: that was one")
    failed = traffic.counted().failed
    there = observe.instances("chat")
    taken = stage.run("gpufleet", "local", "preempt", "--pool", "chat", "--notice", "10s")
    instance = taken.stdout.split()[0]
    with observe.phases_of(next(one for one in there if one["id"] == instance)) as phases:
        _watch_spot_until(stage, "it has drained and on-demand replaces it", lambda: _replaced(instance))
    stage.fact("preempted", instance)
    stage.fact("preempted_phases", phases, f"{instance} was {', then '.join(phases)}, then terminated")
    stage.fact("fallback", [one["id"] for one in _on_demand()], "on-demand replaces missing spot")
    stage.run("gpufleet", "local", "restore")
    _watch_spot_until(stage, "spot is available again and on-demand is terminated", lambda: _fallback_over(stage))
    stage.fact("fallback_left", len(_on_demand()), "spot is ready again, on-demand was drained and terminated")
    lost = traffic.counted().failed - failed
    stage.fact("failed_during_preemption", lost, f"requests that failed meanwhile: {lost}")
    if lost:
        raise StoryError(f"{lost} requests failed: {traffic.counted().failures}")


def _watch_spot_until(stage: Stage, what: str, look_for: Callable[[], str | None]) -> None:
    stage.run("gpufleet", "watch", "spot", "--apply", codes=(0, 3))
    stage.note("repeats this command as cron does and shows its actions")

    def again() -> str | None:
        missing = look_for()
        if missing is not None:
            _print_actions(stage, stage.ask("gpufleet", "watch", "spot", "--apply", "--quiet", codes=(0, 3)))
        return missing

    stage.wait(what, again, stage.cast.wait_s)


def _print_actions(stage: Stage, done: Done) -> None:
    for line in done.stdout.splitlines():
        if ACTION.match(line):
            stage.note(line)


def _still_there(instance: str) -> str | None:
    return f"{instance} still runs" if any(one["id"] == instance for one in observe.instances()) else None


def _on_demand() -> list[dict[str, Any]]:
    return [one for one in observe.instances("chat") if one["kind"] == "on-demand"]


def _replaced(instance: str) -> str | None:
    """Whether the preempted instance is terminated and on-demand is ready."""
    phases = [(observe.agent_status(one) or {}).get("phase") for one in _on_demand()]
    if "ready" in phases:
        return _still_there(instance)
    return f"on-demand instances: {phases}"


def _fallback_over(stage: Stage) -> str | None:
    wanted = stage.cast.served["chat"] - stage.facts["reserved"]
    spot = [one for one in observe.instances("chat") if one["kind"] == "spot"]
    phases = [(observe.agent_status(one) or {}).get("phase") for one in spot]
    if phases.count("ready") >= wanted and not _on_demand():
        return None
    return f"spot: {phases}; on-demand: {len(_on_demand())}"


def _end_idle(stage: Stage) -> None:
    stage.title("Idle GPUs of batch: one has lost its metrics and is kept, the other is marked, drained and ended")
    broken = stage.run("gpufleet", "local", "fault", "--pool", "batch", "--what", "exporter", "--json").json()
    silenced = broken["instance"]
    other = next(one["id"] for one in observe.instances("batch") if one["id"] != silenced)
    size = sum(observe.groups("batch").values())
    stage.wait("the window of the idle watchdog is covered", lambda: _would_not_act(stage, other), stage.cast.wait_s)
    unseen = stage.run("gpufleet", "watch", "idle", "--apply")
    if "--accept-policy" not in unseen.stdout or observe.slack_messages_about(other):
        raise StoryError("the idle watchdog acted on a policy without an earlier dry run")
    stage.fact("unseen_policy_waits", True, "its policy is new, so it waits until an operator has seen a dry run")
    stage.run("gpufleet", "watch", "idle", codes=(0, 3))
    stage.run("gpufleet", "watch", "idle", "--apply", codes=(0, 3))
    stage.note("cron runs it again after the grace; it looks again before it acts")

    def again() -> str | None:
        if (missing := _still_there(other)) is not None:
            _print_actions(stage, stage.ask("gpufleet", "watch", "idle", "--apply", codes=(0, 3)))
        return missing

    stage.wait(f"{other} is ended", again, stage.cast.wait_s)
    stage.run("gpufleet", "watch", "idle", codes=(0, 3))
    decisions = stage.ask("gpufleet", "watch", "idle", "--json", codes=(0, 3)).json()["decisions"]
    reasons = {one["resource"]: one["reason"] for one in decisions}
    stage.fact("ended", other, f"{other} was ended through its group, desired and target lowered")
    stage.fact("silenced", silenced)
    stage.fact("silenced_reason", reasons.get(silenced), f"{silenced} was kept: {reasons.get(silenced)}")
    stage.fact("batch_desired", [size, sum(observe.groups("batch").values())])
    stage.fact("chat_after_idle", len(observe.instances("chat")), "chat was not changed")
    messages = observe.slack_messages_about(other)
    stage.fact("slack_about_idle", len(messages))
    for message in messages[:2]:
        stage.note(f"Slack {message['channel']}:")
        for line in str(message.get("text", "")).splitlines():
            stage.note(f"  {line}")


def _would_not_act(stage: Stage, instance: str) -> str | None:
    """Whether the idle watchdog still has another reason to keep an instance than that its policy is new. Asks with
    --apply: a dry run would count as seen."""
    asked = stage.ask("gpufleet", "watch", "idle", "--apply", "--json", codes=(0, 3)).json()
    found = next((one for one in asked["decisions"] if one["resource"] == instance), None)
    if found is None:
        raise StoryError(f"the idle watchdog reports nothing of {instance}")
    if found["reason_code"] == Reason.POLICY_UNSEEN or found["action"] != Action.KEEP:
        return None
    return f"{instance} is kept: {found['reason']}, {found['detail']}"


def _count_requests(stage: Stage, counted: Counted) -> None:
    text = f"{counted.sent} requests, {counted.failed} failed, slowest {counted.slowest_s} s"
    stage.fact("requests_sent", counted.sent)
    stage.fact("requests_failed", counted.failed, text)
    stage.fact("output_tokens", counted.output_tokens)
    if counted.failed:
        raise StoryError(f"{counted.failed} of {counted.sent} requests failed: {counted.failures}")


def _preview(stage: Stage) -> None:
    stage.title("pulumi preview: no change, since sizes belong to the watchdogs")
    stage.run("pulumi", "preview", "--non-interactive", "--expect-no-changes", *stage.settings, hide=BUSY)
    stage.fact("preview_without_change", True)


def _report(stage: Stage) -> None:
    stage.title("What it cost: USD per million tokens, idle, reserved, saved; the same to Slack")
    stage.run("gpufleet", "watch", "cost", codes=(0, 1))
    before = len(observe.slack_messages())
    stage.run("gpufleet", "report", "cost", "--since", "1h", "--post")
    report = stage.ask("gpufleet", "report", "cost", "--since", "1h", "--json").json()
    stage.fact("report", report)
    try:
        again = recompute(report)
    except ValueError as error:
        raise StoryError(f"the report cannot be recomputed from its JSON: {error}") from error
    texts = (
        f"from --json: {again.charges} charges (seconds x price) make {again.usd:.4f} USD; the differences of the "
        f"counters are {again.prompt:,} input and {again.generation:,} output tokens"
    )
    stage.fact("recomputed", again.charges, texts)
    stage.fact("slack_reports", len(observe.slack_messages()) - before, "the report is in Slack, too")
    _check_dashboards(stage)

    key = secrets.order_key()
    found = secrets.places_with(key, find_folders(stage.environment, stage.root))
    stage.fact("secret_found_in", found)
    if found:
        raise StoryError(f"the key that signs orders is in plain text in {', '.join(found)}")


def _check_dashboards(stage: Stage) -> None:
    """Every query of the dashboards, asked of the real Prometheus of this fleet. Raises StoryError."""
    stage.wait("all queries of the dashboards return data", lambda: _undrawn(_queries(stage)), stage.cast.wait_s)
    stage.run("gpufleet", "monitoring", "check", codes=(0, 3))
    asked = _queries(stage)
    empty = [one["query"] for one in asked if not one["series"]]
    later = f" except USD per hour, which needs {LEAST_COVERED.total_seconds() / 60:.0f} minutes of data"
    stage.fact("dashboard_queries", len(asked))
    stage.fact("empty_queries", empty, f"all panels of the dashboards have data{later if empty else ''}")


def _queries(stage: Stage) -> list[dict[str, Any]]:
    asked: list[dict[str, Any]] = stage.ask("gpufleet", "monitoring", "check", "--json", codes=(0, 3)).json()
    return asked


def _undrawn(asked: Sequence[Mapping[str, Any]]) -> str | None:
    empty = [
        f"{one['dashboard']}: {one['panel']}" for one in asked if not one["series"] and DOLLARS not in one["query"]
    ]
    return f"no data for {', '.join(empty)}" if empty else None


def farewell(stage: Stage) -> None:
    """The last step: remove everything."""
    stage.title("Shutdown: watchdogs paused, pulumi destroy, the embedded cloud down")
    stage.run("gpufleet", "pause", "all", "--reason", "the demo is over", "--for", "1h")
    if stage.replaces_control_host:
        control_host.unprotect(stage)
    stage.run("pulumi", "destroy", "--yes", "--non-interactive", "--skip-preview", *stage.settings, hide=BUSY)
    stage.fact("instances_after_destroy", len(observe.instances()), f"instances left: {len(observe.instances())}")
    stage.fact("left", stage.end_cloud("--json").json())
