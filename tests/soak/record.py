"""What the soak did and what the daemon reported: a file of lines that later runs continue, and a table of it."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.soak.steps import STEPS


@dataclass(frozen=True, slots=True)
class Done:
    """One step that was run to its end."""

    step: str
    minutes: float
    reported: tuple[str, ...]
    """Detectors of confirmed findings, `detector: subject`."""
    unprovoked: tuple[str, ...]
    """Those that the step does not provoke, with their text."""
    still_open: tuple[str, ...]
    """Findings that did not close after the step."""
    unavailable: tuple[str, ...]
    """Sources that were unavailable for a while."""

    @property
    def wrong(self) -> bool:
        return bool(self.unprovoked or self.still_open)


def read(file: Path) -> tuple[Done, ...]:
    """Read what earlier runs recorded; nothing if there is no file."""
    if not file.exists():
        return ()
    return tuple(_done(line) for line in file.read_text().splitlines())


def _done(line: str) -> Done:
    fields: dict[str, Any] = json.loads(line)
    fields |= {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return Done(**fields)


def append(file: Path, done: Done) -> None:
    with file.open("a") as output:
        output.write(json.dumps(asdict(done)) + "\n")


def document(everything: Sequence[Done], about: str) -> str:
    """Return the page for docs/."""
    return "\n".join(_lines(everything, about)) + "\n"


def _lines(everything: Sequence[Done], about: str) -> Iterator[str]:
    minutes = sum(one.minutes for one in everything)
    wrong = [one for one in everything if one.wrong]
    yield from ("# False alarms", "")
    yield "Everyday changes on a real node, and what a daemon beside them reported. Measured by `hack/soak --write`."
    yield from ("", about, "")
    counts = f"{len(everything)} steps, {minutes:.0f} minutes"
    yield f"In all: {counts}, {len(wrong)} with a finding that was not provoked or stayed open."
    yield from (
        "",
        "| step | runs | minutes | reported | not provoked | unavailable for a while |",
        "|---|---|---|---|---|---|",
    )
    for step in STEPS:
        if runs := [one for one in everything if one.step == step.name]:
            yield _row(step.name, runs)
    for one in wrong:
        yield from ("", f"{one.step}:", "", *(f"- {text}" for text in (*one.unprovoked, *one.still_open)))


def _row(name: str, runs: Sequence[Done]) -> str:
    cells = (
        name,
        len(runs),
        f"{sum(one.minutes for one in runs):.0f}",
        _names(text.partition(":")[0] for one in runs for text in one.reported),
        sum(len(one.unprovoked) + len(one.still_open) for one in runs),
        _names(text for one in runs for text in one.unavailable),
    )
    return f"| {' | '.join(map(str, cells))} |"


def _names(names: Iterator[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(set(names))) or "none"
