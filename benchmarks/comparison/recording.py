"""Writes and reads what a player observed on a real engine."""

import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.comparison.player import Observation


def write(path: Path, observations: Sequence[Observation]) -> None:
    """Write a line of JSON for each page. A page repeats no line of the page before it that is the same there."""
    before: list[str] = []
    with path.open("w", encoding="utf-8") as file:
        for one in observations:
            lines = one.page.splitlines()
            known = {line: number for number, line in enumerate(before)}
            document = {
                "run": one.run,
                "step": one.step,
                "at_rest": one.is_at_rest,
                "varying": list(one.varying),
                "facts": one.facts,
                # a number is a line of the page before
                "page": [known.get(line, line) for line in lines],
            }
            file.write(json.dumps(document, separators=(",", ":")) + "\n")
            before = lines


def read(path: Path) -> list[Observation]:
    """Return the observations of a file."""
    found: list[Observation] = []
    before: list[str] = []
    for text in path.read_text("utf-8").splitlines():
        document = json.loads(text)
        lines = [before[line] if isinstance(line, int) else line for line in document["page"]]
        found.append(
            Observation(
                run=document["run"],
                step=document["step"],
                page="\n".join(lines) + "\n",
                is_at_rest=document["at_rest"],
                varying=tuple(document["varying"]),
                facts=document["facts"],
            )
        )
        before = lines
    return found
