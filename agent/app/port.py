"""Wiring of the daemon's port: what it serves, over which transport."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from agent.app import cleaning, loop
from agent.cleanup.journal import JournalFile
from agent.cleanup.journal_store import JournalStore, list_files
from agent.cleanup.status import read_releases
from agent.config import Config, UsageError, both_names
from agent.exporters.json.scan import status_document
from agent.exporters.log import Logger
from agent.exporters.web.connections import CONNECTION_SECONDS
from agent.exporters.web.page import Page
from agent.exporters.web.server import LINKS, CleanupFacts, Documents, HttpExporter, Transport
from agent.exporters.web.tls import Certificates, TlsError, TlsFiles
from agent.model.bug import Bug, bug_of
from agent.model.report import Report
from agent.model.snapshot import Unavailable

ReportBug = Callable[[Bug], None]


def documents(config: Config, heartbeat: loop.Heartbeat, report_bug: ReportBug) -> Documents:
    """Return what the port shows."""
    return Documents(
        alive=lambda: heartbeat.alive,
        facts=_Facts(config, report_bug),
        status=_status(config, heartbeat),
        page=Page(LINKS, version("nodeleak"), config.cleanup) if config.page == "on" else None,
    )


def http_exporter(
    config: Config,
    registry: CollectorRegistry,
    shown: Documents,
    report_bug: ReportBug,
    log: Logger,
    connection_seconds: float = CONNECTION_SECONDS,
) -> HttpExporter:
    """Listen; raises UsageError.

    `shown`: what it serves. `connection_seconds`: how long a connection may last.
    """
    transport = Transport(
        address=config.listen,
        certificates=_certificates(config, log),
        needs_client_certificate=config.tls_client_ca_file is not None,
        connection_seconds=connection_seconds,
    )
    try:
        return HttpExporter(
            transport=transport,
            registry=registry,
            documents=shown,
            report_bug=report_bug,
            warn=log.warning,
        )
    except OSError as error:
        host, port = config.listen
        reason = f"cannot listen on {host or '*'}:{port}: {error.strerror or error}"
        raise UsageError(f"{both_names('listen')}: {reason}") from error


def _certificates(config: Config, log: Logger) -> Certificates | None:
    """Return those of HTTPS; None for HTTP. Raises UsageError."""
    if config.tls_cert_file is None or config.tls_key_file is None:
        return None
    files = TlsFiles(
        certificate=config.tls_cert_file,
        key=config.tls_key_file,
        client_ca=config.tls_client_ca_file,
    )
    try:
        return Certificates(files, log.info, log.error)
    except TlsError as error:
        raise UsageError(f"{both_names(error.file)}: {error}") from error


def _status(
    config: Config, heartbeat: loop.Heartbeat
) -> Callable[[Report, Mapping[str, object], float], dict[str, Any]]:
    """Return what makes the document `nodeleak.status/v1`."""
    agent_version = version("nodeleak")  # it reads a file
    return lambda report, cleanup, age: status_document(
        report,
        cleanup,
        agent_version,
        age=age,
        interval=config.interval.total_seconds(),
        alive=heartbeat.alive,
    )


@dataclass
class _CachedListing:
    """Lists the journal's files for display; anew only if the directory has changed.

    Entries are replaced as a whole, so each change also changes the directory. A cleaner must not
    rely on that.
    """

    directory: Path
    _seen: tuple[int, int] | None = None
    """The identity of the directory in the last sync."""
    _is_settled: bool = False
    _files: list[JournalFile] | None = None
    """None: they are to be listed anew."""

    def __call__(self, directory: Path) -> list[JournalFile]:
        """Return the files, as `list_files` does."""
        if self._files is None:
            self._files = list_files(directory)
        return self._files

    def look(self) -> None:
        """Look for a change; called once in each sync.

        After a change, the files are listed in the next sync as well: a second change may have the
        same time.
        """
        seen = self._identity()
        if seen != self._seen or not self._is_settled:
            self._files = None
        self._is_settled = seen == self._seen
        self._seen = seen

    def _identity(self) -> tuple[int, int] | None:
        """Return inode and mtime of the directory; None: it cannot be read."""
        try:
            found = self.directory.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns


class _Facts:
    """Reads, in each sync, what the port needs from the disk. Used by one thread."""

    def __init__(self, config: Config, report_bug: ReportBug) -> None:
        self._config = config
        self._report_bug = report_bug
        self._listing = _CachedListing(config.state_dir / "journal")
        self._store = JournalStore(config.state_dir, list_files=self._listing)

    def __call__(self, report: Report) -> CleanupFacts:
        try:
            self._listing.look()
            status = cleaning.cleanup_status(self._config, report, self._store)
            return CleanupFacts(status, *read_releases(self._store))
        except Exception as error:  # noqa: BLE001 (the other exporters go on)
            bug = bug_of("http", "cleanup", error)
            self._report_bug(bug)
            status = {
                "mode": self._config.cleanup,
                "networks": [],
                "release_possible": None,
                "why_not": [bug.reason],
                "brake": None,
            }
            return CleanupFacts(status, Unavailable("journal", bug.reason), ())
