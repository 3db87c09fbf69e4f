"""The samples of the soak as an SVG: a panel for each resource, with the runs one after the other."""

from collections.abc import Iterator, Sequence
from typing import Final

from tests.soak.resources import Sample, runs

_WIDTH, _HEIGHT, _LEFT, _GAP = 900, 90, 150, 26
_PANELS: Final = (
    ("memory", "resident memory, MiB", 1024),
    ("threads", "threads", 1),
    ("descriptors", "descriptors", 1),
    ("journal", "state directory, KiB", 1024),
    ("log", "log since the start, KiB", 1024),
)
"""Field, title, and what one unit of the axis is."""
_STYLE: Final = (
    "text{font:12px sans-serif;fill:#57606a}polyline{fill:none;stroke:#0969da;stroke-width:1.2}"
    "line{stroke:#d0d7de}rect{fill:#fff}"
)


def svg(samples: Sequence[Sample]) -> str:
    """Return the picture. Time is that of the measured minutes: what lies between two runs is left out."""
    parts = runs(samples)
    minutes = sum(part[-1].seconds for part in parts) / 60
    height = len(_PANELS) * (_HEIGHT + _GAP) + 2 * _GAP
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 20} {height}">',
        f"<style>{_STYLE}</style>",
        '<rect width="100%" height="100%"/>',
    ]
    for number, (field, title, unit) in enumerate(_PANELS):
        lines += _panel(parts, field, title, unit, _GAP + number * (_HEIGHT + _GAP))
    lines.append(f'<text x="{_LEFT}" y="{height - 12}">0</text>')
    lines.append(f'<text x="{_LEFT + _WIDTH}" y="{height - 12}" text-anchor="end">{minutes:.0f} minutes</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def _panel(parts: Sequence[Sequence[Sample]], field: str, title: str, unit: int, top: int) -> Iterator[str]:
    most = max(getattr(one, field) for part in parts for one in part) / unit * 1.1 or 1.0
    total = sum(part[-1].seconds for part in parts)
    bottom = top + _HEIGHT
    yield f'<text x="{_LEFT - 10}" y="{top + 12}" text-anchor="end">{title}</text>'
    yield f'<text x="{_LEFT - 10}" y="{bottom}" text-anchor="end">0</text>'
    yield f'<text x="{_LEFT - 10}" y="{top + 30}" text-anchor="end">(top: {most:.0f})</text>'
    yield f'<line x1="{_LEFT}" y1="{bottom}" x2="{_LEFT + _WIDTH}" y2="{bottom}"/>'
    before = 0.0
    for part in parts:
        points = " ".join(
            f"{_LEFT + (before + one.seconds) / total * _WIDTH:.1f},"
            f"{bottom - getattr(one, field) / unit / most * _HEIGHT:.1f}"
            for one in part
        )
        yield f'<polyline points="{points}"/>'
        before += part[-1].seconds
        x = _LEFT + before / total * _WIDTH
        yield f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{bottom}"/>'
