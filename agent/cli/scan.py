"""nodeleak scan: report on this node, or on recordings of nodes."""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from agent.cleanup.journal import Journal
from agent.cleanup.journal_store import JournalStore
from agent.cli.node import assess, record_node
from agent.cli.output import (
    DOCUMENTS,
    DONE,
    FOUND,
    UNAVAILABLE,
    has_color,
    has_unicode,
    warn,
    write,
)
from agent.cli.parser import add_address_table, config_of, view_of
from agent.config import Config, UsageError, age, invalid, option, settings_of
from agent.exporters.json.scan import scan_document
from agent.exporters.range_map import map_table
from agent.exporters.release_commands import Release
from agent.exporters.summary import incomplete
from agent.exporters.text.layout import TableView
from agent.exporters.text.scan import scan_names, scan_table
from agent.model.documents import Damaged, Recording, loads
from agent.model.report import Report
from agent.model.text import escape, quote
from agent.sources.source_error import SourceError, describe_os_error

HELP: Final = """\
It takes a snapshot of the node, reports what is wrong, and says what to do. It changes nothing.
If something has to be confirmed, it takes a second snapshot.

examples:
  kubectl exec -n kube-system POD -- nodeleak scan
  nodeleak scan --node worker-1 --kubeconfig /etc/kubernetes/kubelet.conf
  nodeleak scan --api=off                 on the node, without credentials
  nodeleak scan --map                     all addresses of the range
  nodeleak scan --recording *.json        snapshots made by 'nodeleak record'

exit codes:
  0  every check ran
  1  with --exit-code: every check ran, and there are findings
  2  wrong usage or configuration, or a recording that is damaged
  3  incomplete: some checks could not run
"""


def _write_table(report: Report, view: TableView, arguments: argparse.Namespace) -> None:
    if arguments.map:
        text = map_table(report, color=has_color(), unicode=has_unicode(), columns=view.columns)
    else:
        text = scan_table(report, verbose=arguments.verbose, view=view)
    write(text)


def _write_names(report: Report, view: TableView, _: argparse.Namespace) -> None:
    write(scan_names(report, view))
    if missing := incomplete(report):
        warn(missing)


def _write_document(report: Report, _: TableView, arguments: argparse.Namespace) -> None:
    write(DOCUMENTS[arguments.output](scan_document(report)))


_FORMATS: Final[Mapping[str, Callable[[Report, TableView, argparse.Namespace], None]]] = {
    "table": _write_table,
    "wide": _write_table,
    "name": _write_names,
    **dict.fromkeys(DOCUMENTS, _write_document),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_address_table(parser, _FORMATS, ("ip", "age", "state", "cause", "pod"))
    text = "draw every address of the range instead of the table"
    parser.add_argument("--map", action="store_true", help=text)
    text = "list every finding and address on its own line"
    parser.add_argument("-v", "--verbose", action="store_true", help=text)
    text = "scan recordings instead of this node; -: standard input"
    parser.add_argument("--recording", nargs="+", metavar="FILE", help=text)
    text = "exit with 1 if there are findings"
    parser.add_argument("--exit-code", action="store_true", help=text)


def execute(arguments: argparse.Namespace) -> int:
    if arguments.map:
        _require_alone(arguments)

    # First, because it names every mistake in the settings.
    config = config_of(arguments) if arguments.recording is None else None
    view = view_of(arguments)
    if config:
        view = view._replace(release=_with_journal(view.release, config))

    write_report = _FORMATS[arguments.output]
    reports: list[Report] = []
    for name, report in _reports(arguments, config):
        if name and write_report is _write_table:
            separator = "\n" if reports else ""
            write(f"{separator}==> {escape(name)} <==\n")
        write_report(report, view, arguments)
        reports.append(report)

    if not all(report.complete for report in reports):
        return UNAVAILABLE
    return FOUND if arguments.exit_code and any(report.problems for report in reports) else DONE


def _with_journal(release: Release, config: Config) -> Release:
    """Return how to release, with what the journal of this node says about it."""
    store = JournalStore(config.state_dir)
    journal = Journal()
    with suppress(SourceError):  # `clean` says why it cannot be read
        journal = store.read()
    error = None if release.by_job else store.why_unwritable()
    return replace(release, journal=journal, journal_error=error)


def _require_alone(arguments: argparse.Namespace) -> None:
    """Raise UsageError for options of the table that a map cannot have."""
    options = {
        "-v": arguments.verbose,
        "--sort-by": arguments.sort_by,
        f"-o {arguments.output}": arguments.output != "table",
    }
    for option_, is_given in options.items():
        if is_given:
            raise UsageError(f"--map and {option_} cannot be combined: remove one of them")


def _reports(arguments: argparse.Namespace, config: Config | None) -> Iterator[tuple[str, Report]]:
    """Yield the report of this node, or without its settings those of the recordings.

    If there are several, each comes with the name of its file.
    """
    if config:
        yield "", assess(record_node(config), config)
        return
    recordings = [_load(name, arguments) for name in arguments.recording]
    for name, recording in zip(arguments.recording, recordings, strict=True):
        yield name if len(recordings) > 1 else "", assess(recording, None)


def _load(name: str, arguments: argparse.Namespace) -> Recording:
    """Read a recording. Only `--grace` applies to it: other settings say how to read a node."""
    unused = [
        option(setting)
        for setting in settings_of("scan")
        if setting != "grace" and getattr(arguments, setting) is not None
    ]
    if unused:
        raise UsageError(f"{', '.join(unused)} cannot be combined with --recording: remove it")

    recording = _read(name)
    if arguments.grace is None:
        return recording
    try:
        return replace(recording, grace=age(arguments.grace))
    except ValueError as error:
        raise UsageError(invalid("--grace", arguments.grace, error)) from error


def _read(name: str) -> Recording:
    """Read a file, or with `-` standard input. Raises UsageError."""
    try:
        return loads(sys.stdin.read() if name == "-" else Path(name).read_text())
    except OSError as error:
        reason = describe_os_error(error)
    except UnicodeDecodeError:
        reason = "not UTF-8 text: 'nodeleak record' writes recordings"
    except Damaged as error:
        reason = str(error)
    raise UsageError(f"cannot read recording {quote(name)}: {reason}")
