"""What the soak did and what the daemon reported: a file of lines that later runs continue, and a table of it."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from tests.soak.resources import Sample, growth, runs
from tests.soak.steps import STEPS

_RESOURCES: Final = (
    "| run | minutes | memory (MiB): median, most | growth (MiB) | threads: most, growth "
    "| descriptors: most, growth | state directory (KiB) | log (KiB an hour) |"
)


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
    samples: tuple[Sample, ...] = ()
    """The daemon during the step and since the one before."""

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
    fields["samples"] = tuple(Sample(*one) for one in fields.get("samples", ()))
    return Done(**fields)


def all_samples(everything: Sequence[Done]) -> tuple[Sample, ...]:
    return tuple(one for done in everything for one in done.samples)


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
    yield "Everyday changes on a real node, and what a daemon on that node reported. Measured by `hack/soak --write`."
    yield from ("", about, "")
    counts = f"{len(everything)} runs, {minutes:.0f} minutes"
    yield f"In all: {counts}. Runs with an unexpected finding, or with one that stayed open: {len(wrong)}."
    yield from (
        "",
        "| step | runs | minutes | reported | unexpected | sources unavailable for a while |",
        "|---|---|---|---|---|---|",
    )
    for step in STEPS:
        if some := [one for one in everything if one.step == step.name]:
            yield _row(step.name, some)
    for one in wrong:
        yield from ("", f"{one.step}:", "", *(f"- {text}" for text in (*one.unprovoked, *one.still_open)))
    if measured := runs(all_samples(everything)):
        yield from _resources(measured)


def _resources(measured: Sequence[Sequence[Sample]]) -> Iterator[str]:
    minutes = sum(run[-1].seconds for run in measured) / 60
    yield from ("", "## Resources", "")
    yield (
        f"What the daemon used, every 15 s during {minutes:.0f} of these minutes. Each run is a daemon of its own. "
        "Growth is the difference between the medians of the last and of the first third of a run, after 5 minutes."
    )
    yield from (
        "",
        "![memory, threads, descriptors, state directory and log over the time of the soak](soak.svg)",
        "",
        _RESOURCES,
        "|---|---|---|---|---|---|---|---|",
    )
    for number, run in enumerate(measured, 1):
        yield _resources_row(number, run)


def _resources_row(number: int, run: Sequence[Sample]) -> str:
    memory = [one.memory / 1024 for one in run]
    last = run[-1]
    cells = (
        number,
        f"{last.seconds / 60:.0f}",
        f"{median(memory):.1f}, {max(memory):.1f}",
        _grown(run, "memory", 1024),
        f"{max(one.threads for one in run)}, {_grown(run, 'threads')}",
        f"{max(one.descriptors for one in run)}, {_grown(run, 'descriptors')}",
        f"{last.journal / 1024:.0f}",
        f"{last.log / 1024 / last.seconds * 3600:.0f}",
    )
    return f"| {' | '.join(map(str, cells))} |"


def _grown(run: Sequence[Sample], what: str, unit: int = 1) -> str:
    by = growth(run, what)
    return "too short" if by is None else f"{by / unit:+.1f}" if unit > 1 else f"{by:+g}"


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
