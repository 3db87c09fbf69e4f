"""What to think of a node, in a sentence or two: what a person reads first."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from agent.exporters.json.scan import findings_in_order
from agent.exporters.range_map import in_figures
from agent.model.report import NetworkSummary, Report


class Mood(StrEnum):
    WELL = "well"
    DOUBT = "doubt"
    """Something looks wrong, and has not lasted yet."""
    TROUBLE = "trouble"
    BLIND = "blind"
    """Not everything could be read, so nothing is known to be well."""


@dataclass(frozen=True, slots=True)
class Verdict:
    mood: Mood
    partly: bool
    """Whether something could not be read or judged, whatever else is known."""
    headline: str
    more: tuple[str, ...]
    """Sentences."""


def of(report: Report, *, alive: bool) -> Verdict:
    """Judge a report by its findings and its gaps. `alive`: whether rounds go on."""
    mood = _mood(report, alive=alive)
    partly = bool(report.unread) or not report.complete or not alive
    return Verdict(mood, partly, _headline(report, mood, alive=alive), tuple(_more(report, mood, alive=alive)))


def _mood(report: Report, *, alive: bool) -> Mood:
    if any(one.confirmed for one in report.troubles) or (report.cleaning and report.cleaning.stopped):
        return Mood.TROUBLE
    if report.unread or not report.complete or not alive:
        return Mood.BLIND
    return Mood.DOUBT if report.troubles else Mood.WELL


def _headline(report: Report, mood: Mood, *, alive: bool) -> str:
    match mood:
        case Mood.WELL:
            told = _counted(len(report.findings), "finding")
            return f"Nothing is wrong, and {told} to know of" if report.findings else "All is in order"
        case Mood.DOUBT:
            return f"{_counted(len(report.troubles), 'suspicion')}, none confirmed yet"
        case Mood.BLIND:
            return "This agent cannot see everything" if alive else "This agent hangs"
        case Mood.TROUBLE:
            confirmed = sum(one.confirmed for one in report.troubles)
            what = _counted(confirmed, "finding") if confirmed else "cleaning has stopped itself"
            return f"Something is wrong: {what}"


def _more(report: Report, mood: Mood, *, alive: bool) -> Iterator[str]:
    counted = Counter(one.finding.detector.replace("_", " ") for one in findings_in_order(report))
    if counted:
        yield f"{', '.join(f'{n} × {name}' for name, n in counted.items())}."  # noqa: RUF001 (times)
    if not alive:
        yield "No round has ended for too long: what is shown is old."
    if silent := list(dict.fromkeys(one.source for one in report.unread)):
        yield f"Not read: {', '.join(silent)}."
    if failed := [gap.detector for gap in report.gaps if gap.broken]:
        yield f"Failed: {', '.join(failed)}."
    if report.unread or not report.complete:
        if mood is Mood.BLIND and not report.findings:
            yield "Nothing was found as far as could be read: that is not to say that all is well."
        else:
            yield "There may be more, which could not be judged."
    yield from map(_room, report.networks)


def _room(network: NetworkSummary) -> str:
    if network.free is None or network.usable is None:
        return f"How many addresses of {network.name} are free is not known."
    verb = "is" if network.free in {0, 1} else "are"
    free = in_figures(network.free) if network.free else "none"
    return f"Of the {in_figures(network.usable)} addresses of {network.name} {free} {verb} free."


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
