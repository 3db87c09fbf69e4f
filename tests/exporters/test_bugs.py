"""Bugs that the agent survives: logged once each, counted always."""

import threading
from dataclasses import replace

import structlog
from prometheus_client import CollectorRegistry

from agent.exporters.bugs import BugReporter
from agent.exporters.metrics import INTERNAL_ERRORS
from agent.model.bug import Bug, bug_of
from agent.model.report import Report
from tests.builders import node, scanned
from tests.exporters.cleanings import cleaning


class Reported:
    """A reporter, with what it has logged and counted."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._capture = structlog.testing.LogCapture()
        logger = structlog.wrap_logger(None, processors=[self._capture])
        self.reporter = BugReporter(self.registry, logger)

    @property
    def lines(self) -> list[tuple[str, str, str]]:
        assert {line["event"] for line in self._capture.entries} <= {"internal_error"}
        return [(line["part"], line["name"], line["error"]) for line in self._capture.entries]

    @property
    def tracebacks(self) -> list[str]:
        return [line["traceback"] for line in self._capture.entries]

    @property
    def counted(self) -> dict[str, float | None]:
        name = "nodeleak_internal_errors_total"
        return {
            part: self.registry.get_sample_value(name, {"part": part})
            for part in INTERNAL_ERRORS.begins
        }


def bug(part: str, name: str = "x", error: str = "KeyError: 'a'") -> Bug:
    return Bug(part, name, error, "Traceback …")


def report(*bugs: Bug, of_cleaning: tuple[Bug, ...] = ()) -> Report:
    cleaned = replace(cleaning(), bugs=of_cleaning)
    return replace(scanned(node()), bugs=bugs, cleaning=cleaned)


def test_every_part_starts_at_zero_so_that_a_rate_sees_the_first_bug() -> None:
    assert Reported().counted == dict.fromkeys(INTERNAL_ERRORS.begins, 0.0)


def test_each_bug_is_logged_once_with_its_traceback_and_counted_in_every_sync() -> None:
    reported = Reported()
    pods: dict[str, str] = {}
    try:
        pods["pod"]
    except KeyError as error:
        raised = bug_of("source", "pods", error)
    for _ in range(3):
        reported.reporter.export(
            report(raised, bug("detector"), of_cleaning=(bug("guard"), bug("cleaner"))), 0.1
        )
    assert reported.counted == {
        "source": 3,
        "detector": 3,
        "guard": 3,
        "cleaner": 3,
        "exporter": 0,
        "http": 0,
    }
    assert reported.lines == [
        ("source", "pods", "KeyError: 'pod'"),
        ("detector", "x", "KeyError: 'a'"),
        ("guard", "x", "KeyError: 'a'"),
        ("cleaner", "x", "KeyError: 'a'"),
    ]
    assert reported.tracebacks[0].startswith("Traceback")
    assert "test_bugs.py" in reported.tracebacks[0]


def test_another_error_or_another_name_is_another_bug_and_no_cleanup_has_none() -> None:
    reported = Reported()
    others = bug("source"), bug("source", name="y"), bug("source", error="ValueError: b")
    reported.reporter.export(report(*others), 0.1)
    reported.reporter.export(scanned(node()), 0.1)
    assert len(reported.lines) == 3
    assert reported.counted["source"] == 3


def test_errors_that_differ_each_time_do_not_fill_the_log() -> None:
    reported = Reported()
    for number in range(1000):
        reported.reporter(bug("http", error=f"KeyError: {number}"))
    assert len(reported.lines) == 100
    assert reported.counted["http"] == 1000


def test_other_threads_report_theirs() -> None:
    reported = Reported()
    threads = [threading.Thread(target=reported.reporter, args=(bug("http"),)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(reported.lines), reported.counted["http"]) == (1, 20)
