"""What to think of a node, in a sentence or two: what a person reads first."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from agent.exporters.json.scan import findings_in_order
from agent.exporters.range_map import in_figures
from agent.model.report import NetworkSummary, Report


class Status(StrEnum):
    WELL = "well"
    DOUBT = "doubt"
    """Something looks wrong, and has not lasted yet."""
    TROUBLE = "trouble"
    BLIND = "blind"
    """Not everything could be read, so nothing is known to be well."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    status: Status
    partly: bool
    """Whether something could not be read or judged, whatever else is known."""
    headline: str
    more: tuple[str, ...]
    """Sentences."""


def node_status(report: Report, *, alive: bool) -> NodeStatus:
    """Judge a report by its findings and its gaps. `unmanaged`: whether rounds go on."""
    status = _mood(report, alive=alive)
    partly = bool(report.unavailable) or not report.complete or not alive
    return NodeStatus(status, partly, _headline(report, status, alive=alive), tuple(_more(report, status, alive=alive)))


def _mood(report: Report, *, alive: bool) -> Status:
    if any(one.confirmed for one in report.troubles) or (report.cleaning and report.cleaning.halted):
        return Status.TROUBLE
    if report.unavailable or not report.complete or not alive:
        return Status.BLIND
    return Status.DOUBT if report.troubles else Status.WELL


def _headline(report: Report, status: Status, *, alive: bool) -> str:
    match status:
        case Status.WELL:
            told = _counted(len(report.findings), "finding")
            return f"Nothing is wrong, and {told} to know of" if report.findings else "All is in order"
        case Status.DOUBT:
            return f"{_counted(len(report.troubles), 'suspicion')}, none confirmed yet"
        case Status.BLIND:
            return "This agent cannot see everything" if alive else "This agent hangs"
        case Status.TROUBLE:
            confirmed = sum(one.confirmed for one in report.troubles)
            what = _counted(confirmed, "finding") if confirmed else "cleaning has stopped itself"
            return f"Something is wrong: {what}"


def _more(report: Report, status: Status, *, alive: bool) -> Iterator[str]:
    counted = Counter(one.finding.detector.replace("_", " ") for one in findings_in_order(report))
    if counted:
        yield f"{', '.join(f'{n} × {name}' for name, n in counted.items())}."  # noqa: RUF001 (times)
    if not alive:
        yield "No round has ended for too long: what is shown is old."
    if silent := list(dict.fromkeys(one.source for one in report.unavailable)):
        yield f"Not read: {', '.join(silent)}."
    if failed := [gap.detector for gap in report.gaps if gap.broken]:
        yield f"Failed: {', '.join(failed)}."
    if report.unavailable or not report.complete:
        if status is Status.BLIND and not report.findings:
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
