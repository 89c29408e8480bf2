"""Draws which packages import which into docs/imports.svg: `python -m scripts.import_graph`. A test checks the file.

The rows are the layers that import-linter checks.
"""

import itertools
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grimp

ROOT: Final = Path(__file__).parents[1]
PICTURE: Final = ROOT / "docs" / "imports.svg"
LIBRARY: Final = "gpufleet"
WIDTH: Final = 980
MARGIN: Final = 20
SHIFT: Final = 44
BOX_WIDTH: Final = 120
BOX_HEIGHT: Final = 40
ROW_HEIGHT: Final = 92
FRAME: Final = 44
"""Height of the title of the library's frame."""


@dataclass(frozen=True, slots=True)
class Box:
    """One package of the picture. `x` is the middle, `y` the upper edge, in pixels."""

    name: str
    x: float
    y: float


def svg() -> str:
    """The picture. An arrow means that at least one module of the package imports a module of the other."""
    outer = _layers("imports of packages point downwards")[:-1]
    inner = [[f"{LIBRARY}.{name}" for name in row] for row in _layers("imports inside gpufleet point downwards")]
    top = MARGIN + len(outer) * ROW_HEIGHT
    packages, parts = _boxes(outer, MARGIN), _boxes(inner, top + FRAME)
    bottom = top + FRAME + len(inner) * ROW_HEIGHT - MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + MARGIN}" role="img"',
        """     font-family="-apple-system, 'Segoe UI', Helvetica, Arial, sans-serif" font-size="14">""",
        "  <title>Which packages of gpu-fleet import which</title>",
        "  <defs>",
        '   <marker id="arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="6" markerHeight="6" orient="auto">',
        '     <path d="M0 0 10 5 0 10z" fill="#475569"/></marker>',
        "  </defs>",
        f'  <rect width="{WIDTH}" height="{bottom + MARGIN}" fill="#ffffff"/>',
        f'  <rect x="{MARGIN}" y="{top}" width="{WIDTH - 2 * MARGIN}" height="{bottom - top}" rx="10"'
        ' fill="#f0fdf4" stroke="#86efac"/>',
        f'  <text x="{MARGIN + 16}" y="{top + 24}" font-weight="600" fill="#0f172a">{LIBRARY}</text>',
        *_arrows(packages, parts, top),
        *(_drawn(box) for box in (*packages, *parts)),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _layers(name: str) -> list[list[str]]:
    settings: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (contract,) = (one for one in settings["tool"]["importlinter"]["contracts"] if one["name"] == name)
    return [[part.strip() for part in row.split("|")] for row in contract["layers"]]


def _boxes(rows: Sequence[Sequence[str]], top: float) -> list[Box]:
    """Rows of boxes. Every other row is shifted, so that arrows that skip a row stay visible."""
    boxes: list[Box] = []
    for number, names in enumerate(rows):
        step = WIDTH / (len(names) + (len(names) < 3))
        first = step / 2 if len(names) > 2 else step
        shift = SHIFT if number % 2 else -SHIFT
        boxes += [
            Box(name, first + shift + place * step, top + number * ROW_HEIGHT) for place, name in enumerate(names)
        ]
    return boxes


def _arrows(packages: Sequence[Box], parts: Sequence[Box], top: float) -> Iterator[str]:
    graph = grimp.build_graph(*(box.name for box in packages), LIBRARY)
    for boxes in (packages, parts):
        for source, target in itertools.permutations(boxes, 2):
            if _imports(graph, source.name, target.name):
                yield _arrow(source, target.x, target.y)
    for source in packages:
        if _imports(graph, source.name, LIBRARY):
            yield _arrow(source, source.x, top)


def _imports(graph: grimp.ImportGraph, source: str, target: str) -> bool:
    return graph.direct_import_exists(importer=source, imported=target, as_packages=True)


def _arrow(source: Box, x: float, y: float) -> str:
    start = source.y + BOX_HEIGHT
    bend = (y - start) / 2
    return (
        f'  <path d="M{source.x:g} {start:g} C{source.x:g} {start + bend:g} {x:g} {y - bend:g} {x:g} {y:g}"'
        ' fill="none" stroke="#475569" stroke-opacity=".6" marker-end="url(#arrow)"/>'
    )


def _drawn(box: Box) -> str:
    left = box.x - BOX_WIDTH / 2
    label = box.name.removeprefix(f"{LIBRARY}.")
    return (
        f'  <rect x="{left:g}" y="{box.y:g}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6"'
        f' fill="#ffffff" stroke="#64748b"/>\n'
        f'  <text x="{box.x:g}" y="{box.y + 25:g}" text-anchor="middle" fill="#0f172a">{label}</text>'
    )


def main() -> None:
    """Write the picture."""
    PICTURE.write_text(svg(), "utf-8")
    print(f"wrote {PICTURE.relative_to(ROOT)}", file=sys.stderr)


if __name__ == "__main__":
    main()
