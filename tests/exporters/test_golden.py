"""What every output is for recorded and built nodes: the golden files.

`pytest tests/exporters --renew` writes them anew; the difference is what a change does to users.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.checks import engine
from agent.cleanup.journal import Journal
from agent.cleanup.restore import Restoration
from agent.cli import main
from agent.exporters.json.clean import clean_document, journal_document
from agent.exporters.json.status import status_document
from agent.exporters.text.addresses import TableView
from agent.exporters.text.clean import clean_names, clean_table, journal_table, restoration_text
from agent.exporters.text.status import status_line, status_table
from agent.exporters.text.timeline import timeline_table
from agent.exporters.timeline import timeline_document
from agent.exporters.web.page import Page
from agent.exporters.web.server import LINKS
from agent.model.documents import Recording, dumps, loads
from agent.model.release import CleanupStatus
from agent.model.report import Report
from tests.builders import GRACE, node, scanned
from tests.exporters.built import CLEANINGS, JOURNAL, LOST, NODES, RELEASED
from tests.exporters.daemon import Daemon
from tests.exporters.test_metrics import everything

Golden = Callable[[str, str], None]
RECORDED = sorted((Path(__file__).parents[1] / "nodes").glob("*.json"))
PAGES = ("incident", "dual-stack", "docker-silent", "devices-storm", "every-state", "foreign-names", "dark", "range-v6")
"""The nodes with a golden page, and all metrics: they are large."""
SCANS = {
    "scan": (),
    "scan -v": ("-v",),
    "scan -o wide": ("-o", "wide"),
    "scan -o name": ("-o", "name"),
    "scan --map": ("--map",),
}
CLEANUP = CleanupStatus(mode="auto", networks=("kubenet",), release_possible=None, why_not=("it is not known",))


def recording_of(name: str) -> Recording:
    if name in NODES:
        return Recording(GRACE, GRACE * 0, (NODES[name],) * 2)
    return loads((Path(__file__).parents[1] / "nodes" / f"{name}.json").read_text())


def reports_of(recording: Recording) -> list[Report]:
    reports, memory = [], None
    for snapshot in recording.snapshots:
        report, memory = engine.run(snapshot, memory, grace=recording.grace, confirm_after=recording.confirm_after)
        reports.append(report)
    return reports


def sections(parts: Mapping[str, str]) -> str:
    """Write outputs below their heads; one that is equal to an earlier one only names it."""
    first_with: dict[str, str] = {}
    written = ""
    for head, text in parts.items():
        first = first_with.setdefault(text, head)
        written += f"===== {head}\n{text if first == head else f'(as {first})'}\n"
    return written


@pytest.mark.parametrize("name", [*(path.stem for path in RECORDED), *NODES])
def test_a_node_looks_as_it_did(name: str, golden: Golden, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = recording_of(name)
    file = tmp_path / "node.json"
    file.write_text(dumps(recording))

    def scan(*arguments: str) -> str:
        main(["scan", "--recording", str(file), *arguments])
        return "".join(capsys.readouterr())

    reports = reports_of(recording)
    timeline = timeline_document(reports[-1], JOURNAL.entries[:2], JOURNAL.damage)
    status = status_document(reports[-1], CLEANUP, "0.1.0", age=2.5, interval=15.0, alive=True)
    daemon = Daemon()
    lines = [line for report in reports for line in daemon.export(report).lines]
    texts = {head: scan(*arguments) for head, arguments in SCANS.items()}
    texts |= {"timeline": timeline_table(timeline, ""), "timeline -v": timeline_table(timeline, "", verbose=True)}
    texts |= {"status": status_table(status), "status --watch": status_line(status)}
    texts["log"] = "".join(f"{json.dumps(line)}\n" for line in lines)
    texts["metrics"] = metrics(daemon, whole=name in PAGES)
    golden(f"{name}.txt", sections(texts))
    golden(f"{name}.json", "".join((scan("-o", "json"), pretty(status), pretty(timeline))))


def pretty(document: dict[str, Any]) -> str:
    return f"{json.dumps(document, indent=1, allow_nan=False)}\n"


def metrics(daemon: Daemon, *, whole: bool) -> str:
    """Return the samples; unless the whole of it is wanted, without help and zeros."""
    lines = [line for line in daemon.scrape().splitlines() if not re.search("process_|python_version|^# EOF", line)]
    return "".join(f"{line}\n" for line in lines if whole or not (line.startswith("#") or line.endswith(" 0.0")))


@pytest.mark.parametrize("name", PAGES)
def test_the_page_looks_as_it_did(name: str, golden: Golden) -> None:
    page = Page(lambda: (JOURNAL.entries, JOURNAL.damage), LINKS, "0.1.0", "off")
    golden(f"{name}.html", shown(page, reports_of(recording_of(name))[-1]))


def shown(page: Page, report: Report, *, alive: bool = True) -> str:
    """Return the page without what all have in common, and without the cells of free addresses."""
    text = page.render(report, alive=alive, refreshing=True).decode()
    text = re.sub(r"<style>.*?</style>", "<style/>", text, flags=re.DOTALL)
    return re.sub(r'<g class="m-free">.*\n', "", text)


def test_all_metrics_look_as_they_did(golden: Golden) -> None:
    golden("metrics.txt", metrics(everything(), whole=True))


def test_cleanups_look_as_they_did(golden: Golden) -> None:
    """As text, as a document, on the page and in the log."""
    page = Page(lambda: ((), ()), LINKS)
    texts, documents = {}, []
    for head, cleaning in CLEANINGS.items():
        report = replace(scanned(node(LOST)), cleaning=cleaning)
        on_page = shown(page, report).partition('<section aria-labelledby="releases">')[2].partition("</section>")[0]
        headline = status_document(report, CLEANUP, "", age=0, interval=1, alive=True)["headline"]
        texts[head] = clean_table(cleaning)
        texts[f"{head}: -v"] = clean_table(cleaning, verbose=True)
        texts[f"{head}: -o wide"] = clean_table(cleaning, TableView(wide=True))
        texts[f"{head}: -o name"] = clean_names(cleaning, TableView())
        texts[f"{head}: page"] = f"{headline}\n{on_page}"
        texts[f"{head}: log"] = "".join(f"{json.dumps(line)}\n" for line in Daemon(mode="clean").export(report).lines)
        documents.append(clean_document(cleaning))
    golden("cleanups.txt", sections(texts))
    golden("cleanups.json", "".join(map(pretty, documents)))


def test_the_journal_and_restorations_look_as_they_did(golden: Golden) -> None:
    texts = {
        "journal": journal_table(JOURNAL),
        "journal: empty": journal_table(Journal()),
        "journal: missing": journal_table(Journal(), "/var/lib/nodeleak"),
    }
    done = (
        Restoration(RELEASED, done=True),
        Restoration(RELEASED, done=True, why="libcni's x was not put back: it exists"),
        Restoration(replace(RELEASED, pod="", container_id=""), done=False, why="10.244.1.9 is reserved again\x1b"),
    )
    for number, restoration in enumerate(done, 1):
        for applied in (False, True):
            journal = Journal(damage=JOURNAL.damage if number == 2 else ())
            texts[f"restore {number} {applied}"] = restoration_text(restoration, journal, applied=applied)
    golden("journal.txt", sections(texts))
    golden("journal.json", pretty(journal_document(JOURNAL)))


def test_each_golden_file_is_compared(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--renew", default=False):
        return  # the last ones are not written yet
    files = {path.name for path in (Path(__file__).parent / "golden").iterdir()}
    expected: Iterable[str] = [*(path.stem for path in RECORDED), *NODES, "cleanups", "journal"]
    assert files == {f"{name}.{kind}" for name in expected for kind in ("txt", "json")} | {"metrics.txt", "log.txt"} | {
        f"{name}.html" for name in PAGES
    }
