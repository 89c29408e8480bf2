"""The ten scripted runs. Each is a function of a player, so that real engines and models play the same."""

from collections.abc import Callable, Mapping
from typing import Final

from benchmarks.comparison.player import CAPACITY, CONTEXT, QUEUE, Exchange, Player
from serving import metrics

_LONG: Final = 1600
"""Output tokens of a request that is observed while it runs."""
_PROBES: Final = 50
_LEFT: Final = (metrics.GENERATION_TOKENS, metrics.LIVE_TOKENS, metrics.INTER_TOKEN_LATENCY)
"""What depends on the moment at which a client leaves."""


class TooLateError(RuntimeError):
    """The engine was faster than the script: the run must be played again."""


def idle(player: Player) -> None:
    """No request: probes do no work."""
    player.observe("start", is_at_rest=True, facts={"release": player.version_text(), **player.key_facts()})
    statuses = {name: {player.probe(name) for _ in range(_PROBES)} for name in ("alive", "version", "metrics")}
    player.observe(
        f"{_PROBES} probes", is_at_rest=True, facts={name: ", ".join(found) for name, found in statuses.items()}
    )


def short_request(player: Player) -> None:
    """One response without a stream."""
    _start(player)
    status = player.send(player.request(output=8), stream=False).finish()
    _end(player, status=status)


def long_stream(player: Player) -> None:
    """One request that runs for long."""
    _start(player)
    stream = player.send(player.request(output=_LONG))
    for tokens in (100, 200, 300):
        stream.reach(tokens)
        player.observe(f"{tokens} tokens")
        _check_open(stream)
    _end(player, status=stream.finish())


def long_prompt(player: Player) -> None:
    """A long prompt twice: the second time it is in the prefix cache."""
    request = player.request(prompt=1500, output=4)
    for step in ("first", "second"):
        _start(player, f"before the {step}")
        _end(player, f"after the {step}", status=player.send(request).finish())


def burst(player: Player) -> None:
    """More requests than the engine runs at the same time."""
    _start(player)
    running, waiting = _fill(player, CAPACITY)
    player.until_waiting(CAPACITY)
    player.observe("queued")
    _check_open(*running)
    _end(player, status=_all(running + waiting))


def full_queue(player: Player) -> None:
    """More requests than the queue takes: the engine refuses them."""
    _start(player)
    running, waiting = _fill(player, QUEUE)
    player.until_waiting(QUEUE)
    _check_open(*running)
    refused = _all([player.send(player.request()) for _ in range(3)])
    _end(player, status=_all(running + waiting), refused=refused)


def client_leaves(player: Player) -> None:
    """A client disconnects in the middle of its stream. Another one stays."""
    _start(player)
    left, stays = player.send(player.request(output=_LONG)), player.send(player.request(output=400))
    left.reach(50)
    _check_open(left)
    left.leave()
    status = stays.finish()
    player.until_idle()
    player.observe("end", is_at_rest=True, varying=_LEFT, facts={"status": status})


def queued_client_leaves(player: Player) -> None:
    """Clients disconnect while their requests wait."""
    _start(player)
    running, waiting = _fill(player, 2)
    player.until_waiting(2)
    for exchange in waiting:
        exchange.leave()
    if any(exchange.tokens for exchange in waiting):
        raise TooLateError
    _end(player, status=_all(running))


def bad_request(player: Player) -> None:
    """A prompt that is longer than the context does no work."""
    _start(player)
    status = player.send(player.request(prompt=CONTEXT + 100), stream=False).finish()
    _end(player, status=status)


def drain_and_restart(player: Player) -> None:
    """SIGTERM while a request runs; then a new process."""
    _start(player)
    stream = player.send(player.request(output=_LONG))
    stream.reach(50)
    _check_open(stream)
    player.terminate()
    alive = player.probe("alive")
    late = player.send(player.request(), stream=False).finish()
    facts = {"alive": alive, "a new request": late, "still runs": str(not stream.ended)}
    facts["status"] = stream.finish()
    facts["exit code"] = str(player.exit_code())
    player.restart()
    player.warm_up()
    player.observe("restarted", is_at_rest=True, facts=facts)
    _end(player, "first request", status=player.send(player.request()).finish())


def _start(player: Player, step: str = "start") -> None:
    player.until_idle()
    player.observe(step, is_at_rest=True)


def _end(player: Player, step: str = "end", **facts: str) -> None:
    player.until_idle()
    player.observe(step, is_at_rest=True, facts=facts)


def _check_open(*exchanges: Exchange) -> None:
    if any(exchange.ended for exchange in exchanges):
        raise TooLateError


def _fill(player: Player, waiting: int) -> tuple[list[Exchange], list[Exchange]]:
    """Run as many requests as the engine can, then send others."""
    running = [player.send(player.request(output=800)) for _ in range(CAPACITY)]
    for stream in running:
        stream.reach(1)
    return running, [player.send(player.request(output=50)) for _ in range(waiting)]


def _all(exchanges: list[Exchange]) -> str:
    return ", ".join(sorted({exchange.finish() for exchange in exchanges}))


RUNS: Final[Mapping[str, Callable[[Player], None]]] = {
    run.__name__.replace("_", " "): run
    for run in (
        idle,
        short_request,
        long_stream,
        long_prompt,
        burst,
        full_queue,
        client_leaves,
        queued_client_leaves,
        bad_request,
        drain_and_restart,
    )
}
"""By name, in the order in which they are played."""


_ATTEMPTS: Final = 3


def play(player: Player) -> None:
    """Play all runs, one after another, on one engine (and the one after its restart).

    Raises:
        TooLateError: the engine was faster than the script three times.
    """
    player.warm_up()
    for name, run in RUNS.items():
        before = list(player.observations)
        for attempt in range(_ATTEMPTS):
            player.begin(name)
            try:
                run(player)
                break
            except TooLateError:
                if attempt == _ATTEMPTS - 1:
                    raise
                player.observations[:] = before
