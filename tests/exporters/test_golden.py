"""What every output is for recorded and built nodes: the golden files.

`pytest tests/exporters --renew` writes them anew; the difference is what a change does to users.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from agent.checks.addresses import exhausted_range
from agent.checks.registry import DETECTORS
from agent.exporters.advice import advice
from agent.exporters.json.clean import clean_document
from agent.exporters.summary import finding_lines, headline
from agent.exporters.text.clean import clean_table
from agent.exporters.text.timeline import timeline_table
from agent.exporters.timeline import timeline_document
from agent.model.documents import dumps
from agent.model.report import Report
from tests.builders import node, scanned
from tests.cli.commands import nodeleak
from tests.exporters.built import (
    CLEANINGS,
    LOST,
    NODES,
    RECORDINGS,
    RELEASED,
    recording_of,
    reports_of,
    write_journal,
)
from tests.exporters.daemon import Daemon
from tests.exporters.served import Server, status
from tests.exporters.test_metrics import everything

Golden = Callable[[str, str], None]
PAGES = (
    "incident",
    "dual-stack",
    "docker-silent",
    "devices-storm",
    "every-state",
    "foreign-names",
    "dark",
    "range-v6",
)
"""The nodes with a golden page, and all metrics: they are large."""
_COMMAND = r" {4,}(nodeleak|kubectl|journalctl|\(iptables-save) "
"""A line that is a command, as steps have them."""
SCANS = (
    ("scan",),
    ("scan", "-v"),
    ("scan", "-o", "wide"),
    ("scan", "-o", "name"),
    ("scan", "--map"),
)


def sections(parts: Mapping[str, str]) -> str:
    """Write outputs below their heads; one that is equal to an earlier one only names it."""
    first_with: dict[str, str] = {}
    written = ""
    for head, text in parts.items():
        first = first_with.setdefault(text, head)
        written += f"===== {head}\n{text if first == head else f'(as {first})'}\n"
    return written


@pytest.mark.parametrize("name", [*RECORDINGS, *NODES])
def test_a_node_looks_as_it_did(name: str, golden: Golden, server: Server) -> None:
    recording = recording_of(name)
    reports = reports_of(recording)

    def scan(*command: str) -> str:
        done = nodeleak(*command, "--recording=-", given=dumps(recording))
        return done.out + done.err

    assert [sentence for sentence in prose_of(reports[-1]) if is_long(sentence)] == []
    timeline = timeline_document(
        reports[-1], [RELEASED, replace(RELEASED, restored=RELEASED.at)], ["line 3: no"]
    )
    daemon = Daemon()
    lines = [line for report in reports for line in daemon.export(report).lines]
    server.export(reports[-1], 0.1)
    texts = {" ".join(command): scan(*command) for command in SCANS}
    texts |= {
        "timeline": timeline_table(timeline, None),
        "timeline -v": timeline_table(timeline, None, verbose=True),
    }
    texts["status"] = nodeleak("status", f"--listen=127.0.0.1:{server.port}").out
    for head, text in texts.items():
        assert text.replace("\n", "").isprintable(), head
        assert not re.search(r" +\n", text), head
        if head not in {"scan -o name", "scan --map"}:
            assert too_wide(text) == [], head
            assert broken_commands(text) == [], head
    texts["log"] = "".join(f"{json.dumps(line)}\n" for line in lines)
    texts["metrics"] = metrics(daemon, whole=name in PAGES)
    golden(f"{name}.txt", sections(texts))
    golden(
        f"{name}.json",
        "".join((scan("scan", "-o", "json"), pretty(status(reports[-1])), pretty(timeline))),
    )


def prose_of(report: Report) -> Iterator[str]:
    """Yield every sentence about findings: what is said of them, and what to do."""
    yield headline(report)
    for detector, lines in finding_lines(report).items():
        for line in lines:
            yield from (line.text, *line.details)
        steps = advice(detector, report)
        # A range that is full of leaks has their steps.
        assert steps or detector == exhausted_range.NAME, detector
        for step in steps:
            yield from re.split(r"(?<=[.!?])\s+", step.text)


def is_long(sentence: str) -> bool:
    """Return whether a tired reader loses the thread: names in a list do not count."""
    words = re.sub(r"\([^()]*\)", "", sentence).split()
    return sum(not word.endswith(",") for word in words) > 40


def too_wide(text: str) -> list[str]:
    """Return the lines of prose that do not fit 100 columns.

    Commands stay on one line, and so do the rows of tables; an error is a line of its own for grep.
    """
    no_prose = re.compile(rf"{_COMMAND}|nodeleak: |.*\S {{2,}}\S")
    return [line for line in text.splitlines() if len(line) > 100 and not no_prose.match(line)]


def broken_commands(text: str) -> list[str]:
    """Return the lines in which a command begins and does not end."""
    begun = re.compile(r"'(nodeleak|kubectl) [^']*$")
    return [line for line in text.splitlines() if line.count("`") % 2 or begun.search(line)]


def pretty(document: dict[str, Any]) -> str:
    return f"{json.dumps(document, indent=1, allow_nan=False)}\n"


def metrics(daemon: Daemon, *, whole: bool) -> str:
    """Return the samples; unless the whole of it is wanted, without help and zeros."""
    lines = [
        line
        for line in daemon.scrape().splitlines()
        if not re.search("process_|python_version|^# EOF", line)
    ]
    return "".join(
        f"{line}\n"
        for line in lines
        if whole or not (line.startswith("#") or line.endswith(" 0.0"))
    )


@pytest.mark.parametrize("name", PAGES)
def test_the_page_looks_as_it_did(name: str, golden: Golden, server: Server) -> None:
    golden(f"{name}.html", shown(server, reports_of(recording_of(name))[-1]))


def shown(server: Server, report: Report) -> str:
    """Return the page without what all have in common, and without the cells of free addresses."""
    text = re.sub(r"<style>.*?</style>", "<style/>", server.page(report), flags=re.DOTALL)
    text = re.sub(r'<g class="m-free">.*\n', "", text)
    return re.sub(r"\S*/torn.json", "torn.json", text)


def test_cleanups_and_all_metrics_look_as_they_did(golden: Golden, server: Server) -> None:
    """Cleanups as text, as a document, on the page and in the log."""
    golden("metrics.txt", metrics(everything(), whole=True))
    texts, documents = {}, []
    for head, cleaning in CLEANINGS.items():
        report = replace(scanned(node(LOST)), cleaning=cleaning)
        page = (
            shown(server, report)
            .partition('<section aria-labelledby="releases">')[2]
            .partition("</section>")[0]
        )
        texts[head] = clean_table(cleaning)
        texts[f"{head}: -v"] = clean_table(cleaning, verbose=True)
        texts[f"{head}: page"] = f"{status(report)['headline']}\n{page}"
        texts[f"{head}: log"] = "".join(
            f"{json.dumps(line)}\n" for line in Daemon(mode="clean").export(report).lines
        )
        documents.append(clean_document(cleaning))
    golden("cleanups.txt", sections(texts))
    golden("cleanups.json", "".join(map(pretty, documents)))


@pytest.fixture
def state_dir() -> Iterator[Path]:
    """Return a directory whose path is as long on every machine: lines are wrapped."""
    with TemporaryDirectory(prefix="nodeleak-", dir="/tmp") as path:
        yield Path(path)


def test_the_journal_looks_as_it_did(golden: Golden, state_dir: Path) -> None:
    write_journal(state_dir)
    text, document = (
        nodeleak("journal", f"--state-dir={state_dir}", *more).out for more in ((), ("-o", "json"))
    )
    golden("journal.txt", text.replace(str(state_dir), ""))
    golden("journal.json", document.replace(str(state_dir), ""))


def test_each_golden_file_is_compared_and_every_detector_has_found_something(
    request: pytest.FixtureRequest,
) -> None:
    if request.config.getoption("--renew", default=False):
        return  # the last ones are not written yet
    directory = Path(__file__).parent / "golden"
    expected = {
        f"{name}.{kind}"
        for name in (*RECORDINGS, *NODES, "cleanups", "journal")
        for kind in ("txt", "json")
    }
    expected |= {"metrics.txt", "log.txt"} | {f"{name}.html" for name in PAGES}
    assert {path.name for path in directory.iterdir()} == expected
    documents = "".join(path.read_text() for path in directory.glob("*.json"))
    assert [
        one.NAME for one in DETECTORS if f'"detector": "{one.NAME}",\n   "subject"' not in documents
    ] == []
