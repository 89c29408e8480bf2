"""The steps, in the product's own commands, the same on both clouds. Windows are seconds here, from the settings
of `aws-local` and `gcp-local`."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from localcloud.lifecycle.environment import credentials_of
from localcloud.lifecycle.parts import CONTROL_HOST
from localcloud.lifecycle.selected_cloud import stack_of

from gpufleet.console.exporter import MIN_COVERED
from gpufleet.domain.decisions import Action, Reason
from gpufleet.domain.model import Cloud
from gpufleet.toolchain.folders import find_folders
from scripts.demo import control_host, observe, secrets
from scripts.demo.recompute import recompute
from scripts.demo.session import CommandResult, DemoError, Session
from scripts.demo.traffic import Counted, Traffic

ACTION: Final = re.compile(r"^(resize|mark|end|replace|unmark) \S+: ")
"""A line of a watchdog that says what it did."""
BUSY: Final = r"^@ |ing \(\d+s\)|^\s*$|history and configuration|remove the stack completely"
"""Lines of Pulumi that only say that something is on its way."""
DOLLARS: Final = "gpufleet_spend_"
"""Parts of queries for values that need MIN_COVERED in the ledger, longer than most demos take."""


def run_steps(session: Session) -> None:
    """Run the steps from `local up` to the report. Stops its clients; `shut_down` is the last step."""
    _bring_up(session)
    _provision(session)
    _boot(session)
    traffic = Traffic(host=CONTROL_HOST, port=8080, model="chat", clients=session.variant.clients)
    try:
        _serve(session, traffic)
        _preempt(session, traffic)
        _end_idle(session)
        if session.replaces_control_host:
            control_host.replace_in_the_middle(session, traffic)
    finally:
        counted = traffic.stop()
    _count_requests(session, counted)
    _preview(session)
    _report(session)


def _bring_up(session: Session) -> None:
    apis = "AWS" if session.cloud is Cloud.AWS else "Google Cloud"
    session.title(
        f"The embedded cloud: {apis} APIs, instance metadata, Slack on loopback; real Prometheus, real HAProxy"
    )
    chosen = () if session.cloud is Cloud.AWS else ("--cloud", session.cloud.value)
    session.run("gpufleet", "local", "up", *chosen)
    # each start of the cloud has a token of its own
    credentials = credentials_of(find_folders(session.environment, session.root))
    session.environment = {**session.environment, **credentials}
    os.environ.update(credentials)
    session.run("gpufleet", "local", "status")


def _provision(session: Session) -> None:
    stack = stack_of(session.cloud)
    session.title(f"pulumi up: the real engine runs the production program with the settings of {stack}")
    done = session.run(
        "pulumi",
        "up",
        "--yes",
        "--non-interactive",
        "--skip-preview",
        "--policy-pack",
        "policies",
        *session.settings,
        hide=BUSY,
    )
    outputs = session.ask("pulumi", "stack", "output", "--json").json()
    session.fact("fleet_url", outputs["fleet_url"])
    session.fact("up_seconds", round(done.seconds, 1), f"the fleet document is at {outputs['fleet_url']}")


def _boot(session: Session) -> None:
    session.title("Instances boot: user data, the node agent by its digest, the model onto local disk, the engine")
    took = session.wait(
        "every replica is up in HAProxy",
        observe.ready_servers(session, session.variant.served),
        session.variant.wait_s,
    )
    session.fact("boot_seconds", round(took, 1))
    session.run("gpufleet", "router", "status")
    for one in observe.instances():
        session.note(
            f"{one['id']} {one['pool']:<5} {one['kind']:<8} {one['zone']} {one['address']}: {observe.boot_of(one)}"
        )
    session.wait("every agent has identified its engine", _unidentified, session.variant.wait_s)
    engines = {one["pool"]: observe.engine_of(one) for one in observe.instances()}
    texts = ", ".join(f"{pool} runs {engine}" for pool, engine in sorted(engines.items()))
    session.fact("engines", engines, f"engines, as their agents identify them: {texts}")
    session.fact("instances", {pool: len(observe.instances(pool)) for pool in session.variant.served})
    session.fact("reserved", sum(one["kind"] == "reserved" for one in observe.instances("chat")))
    session.fact("spot_zones", sorted({one["zone"] for one in observe.instances("chat") if one["kind"] == "spot"}))
    session.wait("Prometheus has found every instance", lambda: _all_scraped(session), session.variant.wait_s)
    session.fact("scraped", _scraped(), "Prometheus found them in its targets file: engine, DCGM and agent answer")


def _unidentified() -> str | None:
    unknown = [one["id"] for one in observe.instances() if observe.engine_of(one) is None]
    return f"unknown: {', '.join(unknown)}" if unknown else None


def _scraped() -> dict[str, int]:
    found = observe.query('count by (job) (up{instance_id!=""} == 1)')
    return {one["metric"]["job"]: int(one["value"][1]) for one in found}


def _all_scraped(session: Session) -> str | None:
    seen, wanted = _scraped(), sum(session.variant.served.values())
    missing = {job: seen.get(job, 0) for job in ("engine", "accelerator", "node") if seen.get(job, 0) < wanted}
    return f"targets up: {missing} of {wanted}" if missing else None


def _serve(session: Session, traffic: Traffic) -> None:
    session.title("OpenAI-style chat requests through HAProxy: chat gets them, batch gets none")
    before = _requests(session)
    traffic.start()
    url = "http://127.16.0.10:8080/v1/chat/completions"
    session.note(f"{session.variant.clients} clients send chat requests to {url}")
    session.wait("60 requests are answered", lambda: _answered(traffic, 60), session.variant.wait_s)
    # the router's status is of its last pass, so it may be behind what the clients counted
    session.wait(
        "the router has counted them", lambda: _counted(_gained(session, before), 60), session.variant.wait_s
    )
    gained = _gained(session, before)
    session.fact("requests_by_pool", gained, f"requests so far: chat {gained['chat']}, batch {gained['batch']}")
    if gained["batch"]:
        raise DemoError(f"batch got {gained['batch']} requests that were meant for chat")
    session.run("gpufleet", "watch", "cost", codes=(0, 1))


def _answered(traffic: Traffic, wanted: int) -> str | None:
    counted = traffic.counted()
    return (
        None if counted.answered >= wanted else f"{counted.answered} are, {counted.failed} failed {counted.failures}"
    )


def _counted(gained: Mapping[str, int], wanted: int) -> str | None:
    return None if sum(gained.values()) >= wanted else f"it counted {sum(gained.values())} of {wanted}"


def _gained(session: Session, before: Mapping[str, int]) -> dict[str, int]:
    return {pool: count - before[pool] for pool, count in _requests(session).items()}


def _requests(session: Session) -> dict[str, int]:
    pools = observe.router_pools(session)
    return {
        pool: sum(int(server.get("requests") or 0) for server in pools.get(pool, []))
        for pool in session.variant.served
    }


def _preempt(session: Session, traffic: Traffic) -> None:
    session.title("Spot loss: the instance drains, on-demand replaces it and is terminated when spot returns")
    session.run("gpufleet", "watch", "spot", codes=(0, 3))
    session.note("a policy acts only after an operator has seen a dry run of it: that was one")
    failed = traffic.counted().failed
    there = observe.instances("chat")
    taken = session.run("gpufleet", "local", "preempt", "--pool", "chat", "--notice", "10s")
    instance = taken.stdout.split()[0]
    with observe.phases_of(next(one for one in there if one["id"] == instance)) as phases:
        _watch_spot_until(session, "it has drained and on-demand replaces it", lambda: _replaced(instance))
    session.fact("preempted", instance)
    session.fact("preempted_phases", phases, f"{instance} was {', then '.join(phases)}, then terminated")
    session.fact("fallback", [one["id"] for one in _on_demand()], "on-demand replaces missing spot")
    session.run("gpufleet", "local", "restore")
    _watch_spot_until(session, "spot is available again and on-demand is terminated", lambda: _fallback_over(session))
    session.fact("fallback_left", len(_on_demand()), "spot is ready again, on-demand was drained and terminated")
    lost = traffic.counted().failed - failed
    session.fact("failed_during_preemption", lost, f"requests that failed meanwhile: {lost}")
    if lost:
        raise DemoError(f"{lost} requests failed: {traffic.counted().failures}")


def _watch_spot_until(session: Session, what: str, look_for: Callable[[], str | None]) -> None:
    session.run("gpufleet", "watch", "spot", "--apply", codes=(0, 3))
    session.note("repeats this command as cron does and shows its actions")

    def again() -> str | None:
        missing = look_for()
        if missing is not None:
            _print_actions(session, session.ask("gpufleet", "watch", "spot", "--apply", "--quiet", codes=(0, 3)))
        return missing

    session.wait(what, again, session.variant.wait_s)


def _print_actions(session: Session, done: CommandResult) -> None:
    for line in done.stdout.splitlines():
        if ACTION.match(line):
            session.note(line)


def _still_there(instance: str) -> str | None:
    return f"{instance} still runs" if any(one["id"] == instance for one in observe.instances()) else None


def _on_demand() -> list[dict[str, Any]]:
    return [one for one in observe.instances("chat") if one["kind"] == "on-demand"]


def _replaced(instance: str) -> str | None:
    """What is still missing until the preempted instance is terminated and on-demand is ready; None: nothing."""
    phases = [(observe.agent_status(one) or {}).get("phase") for one in _on_demand()]
    if "ready" in phases:
        return _still_there(instance)
    return f"on-demand instances: {phases}"


def _fallback_over(session: Session) -> str | None:
    wanted = session.variant.served["chat"] - session.facts["reserved"]
    spot = [one for one in observe.instances("chat") if one["kind"] == "spot"]
    phases = [(observe.agent_status(one) or {}).get("phase") for one in spot]
    if phases.count("ready") >= wanted and not _on_demand():
        return None
    return f"spot: {phases}; on-demand: {len(_on_demand())}"


def _end_idle(session: Session) -> None:
    session.title("Idle GPUs of batch: one has lost its metrics and is kept, the other is marked, drained and ended")
    broken = session.run("gpufleet", "local", "fault", "--pool", "batch", "--what", "exporter", "--json").json()
    silenced = broken["instance"]
    other = next(one["id"] for one in observe.instances("batch") if one["id"] != silenced)
    size = sum(observe.groups("batch").values())
    session.wait(
        "the window of the idle watchdog is covered", lambda: _would_not_act(session, other), session.variant.wait_s
    )
    unseen = session.run("gpufleet", "watch", "idle", "--apply")
    if "--accept-policy" not in unseen.stdout or observe.slack_messages_about(other):
        raise DemoError("the idle watchdog acted on a policy without an earlier dry run")
    session.fact("unseen_policy_waits", True, "its policy is new, so it waits until an operator has seen a dry run")
    session.run("gpufleet", "watch", "idle", codes=(0, 3))
    session.run("gpufleet", "watch", "idle", "--apply", codes=(0, 3))
    session.note("cron runs it again after the grace; it looks again before it acts")

    def again() -> str | None:
        if (missing := _still_there(other)) is not None:
            _print_actions(session, session.ask("gpufleet", "watch", "idle", "--apply", codes=(0, 3)))
        return missing

    session.wait(f"{other} is ended", again, session.variant.wait_s)
    session.run("gpufleet", "watch", "idle", codes=(0, 3))
    decisions = session.ask("gpufleet", "watch", "idle", "--json", codes=(0, 3)).json()["decisions"]
    reasons = {one["resource"]: one["reason"] for one in decisions}
    session.fact("ended", other, f"{other} was ended through its group, desired and target lowered")
    session.fact("silenced", silenced)
    session.fact("silenced_reason", reasons.get(silenced), f"{silenced} was kept: {reasons.get(silenced)}")
    session.fact("batch_desired", [size, sum(observe.groups("batch").values())])
    session.fact("chat_after_idle", len(observe.instances("chat")), "chat was not changed")
    messages = observe.slack_messages_about(other)
    session.fact("slack_about_idle", len(messages))
    for message in messages[:2]:
        session.note(f"Slack {message['channel']}:")
        for line in str(message.get("text", "")).splitlines():
            session.note(f"  {line}")


def _would_not_act(session: Session, instance: str) -> str | None:
    """Which other reason than its new policy the idle watchdog has to keep an instance; None: no other. Asks with
    --apply: a dry run would count as seen."""
    asked = session.ask("gpufleet", "watch", "idle", "--apply", "--json", codes=(0, 3)).json()
    found = next((one for one in asked["decisions"] if one["resource"] == instance), None)
    if found is None:
        raise DemoError(f"the idle watchdog reports nothing of {instance}")
    if found["reason_code"] == Reason.POLICY_UNSEEN or found["action"] != Action.KEEP:
        return None
    return f"{instance} is kept: {found['reason']}, {found['detail']}"


def _count_requests(session: Session, counted: Counted) -> None:
    text = f"{counted.sent} requests, {counted.failed} failed, slowest {counted.slowest_s} s"
    session.fact("requests_sent", counted.sent)
    session.fact("requests_failed", counted.failed, text)
    session.fact("output_tokens", counted.output_tokens)
    if counted.failed:
        raise DemoError(f"{counted.failed} of {counted.sent} requests failed: {counted.failures}")


def _preview(session: Session) -> None:
    session.title("pulumi preview: no change, since sizes belong to the watchdogs")
    session.run("pulumi", "preview", "--non-interactive", "--expect-no-changes", *session.settings, hide=BUSY)
    session.fact("preview_without_change", True)


def _report(session: Session) -> None:
    session.title("What it cost: USD per million tokens, idle, reserved, saved; the same to Slack")
    session.run("gpufleet", "watch", "cost", codes=(0, 1))
    before = len(observe.slack_messages())
    session.run("gpufleet", "report", "cost", "--since", "1h", "--post")
    report = session.ask("gpufleet", "report", "cost", "--since", "1h", "--json").json()
    session.fact("report", report)
    try:
        again = recompute(report)
    except ValueError as error:
        raise DemoError(f"the report cannot be recomputed from its JSON: {error}") from error
    texts = (
        f"from --json: {again.charges} charges (seconds x price) make {again.usd:.4f} USD; the differences of the "
        f"counters are {again.prompt:,} input and {again.generation:,} output tokens"
    )
    session.fact("recomputed", again.charges, texts)
    session.fact("slack_reports", len(observe.slack_messages()) - before, "the report is in Slack, too")
    _check_dashboards(session)

    key = secrets.order_key()
    found = secrets.places_with(key, find_folders(session.environment, session.root))
    session.fact("secret_found_in", found)
    if found:
        raise DemoError(f"the key that signs orders is in plain text in {', '.join(found)}")


def _check_dashboards(session: Session) -> None:
    """Every query of the dashboards, asked of the real Prometheus of this fleet. Raises DemoError."""
    session.wait(
        "all queries of the dashboards return data", lambda: _undrawn(_queries(session)), session.variant.wait_s
    )
    session.run("gpufleet", "monitoring", "check", codes=(0, 3))
    asked = _queries(session)
    empty = [one["query"] for one in asked if not one["series"]]
    later = f" except USD per hour, which needs {MIN_COVERED.total_seconds() / 60:.0f} minutes of data"
    session.fact("dashboard_queries", len(asked))
    session.fact("empty_queries", empty, f"all panels of the dashboards have data{later if empty else ''}")


def _queries(session: Session) -> list[dict[str, Any]]:
    asked: list[dict[str, Any]] = session.ask("gpufleet", "monitoring", "check", "--json", codes=(0, 3)).json()
    return asked


def _undrawn(asked: Sequence[Mapping[str, Any]]) -> str | None:
    empty = [
        f"{one['dashboard']}: {one['panel']}" for one in asked if not one["series"] and DOLLARS not in one["query"]
    ]
    return f"no data for {', '.join(empty)}" if empty else None


def shut_down(session: Session) -> None:
    """The last step: remove everything."""
    session.title("Shutdown: watchdogs paused, pulumi destroy, the embedded cloud down")
    session.run("gpufleet", "pause", "all", "--reason", "the demo is over", "--for", "1h")
    if session.replaces_control_host:
        control_host.unprotect(session)
    session.run("pulumi", "destroy", "--yes", "--non-interactive", "--skip-preview", *session.settings, hide=BUSY)
    session.fact("instances_after_destroy", len(observe.instances()), f"instances left: {len(observe.instances())}")
    session.fact("left", session.end_cloud("--json").json())
