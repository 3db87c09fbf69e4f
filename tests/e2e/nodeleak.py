"""Runs the installed `nodeleak`: single commands, and the daemon with its log, metrics and report."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.bench.measure import get
from tests.processes import environment

from .node import STORE, Cluster, eventually, run

NODELEAK = Path(sys.executable).with_name("nodeleak")
DROPPED = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")
"""Command prefix: run as root without any capability."""

READ_ONLY = ("unshare", "--mount", "sh", "-c", 'mount -o remount,bind,ro / && exec "$@"', "sh")
"""Command prefix: the root file system is read-only. (The certificates of a kubeconfig need a file.)"""

NO_STORE_TO_WRITE = (
    *("unshare", "--mount", "sh", "-c"),
    'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"',
    str(STORE),
)
"""Command prefix: only host-local's directory is read-only, as in observe mode."""

BOLD = (
    "--grace=0s",
    "--settle=0s",
    "--max-share=100%",
)  # All settings of `clean` that turn guards off


@dataclass(frozen=True)
class Output:
    """What a command printed as JSON."""

    code: int
    document: dict[str, Any]

    @property
    def unavailable(self) -> set[str]:
        return {one["source"] for one in self.document["unavailable"]}


class Report(Output):
    """Of one scan."""

    @property
    def states(self) -> dict[str, str]:
        """The state of each reservation, by address."""
        return {one["ip"]: one["state"] for one in self.document["reservations"]}

    @property
    def pods(self) -> dict[str, str | None]:
        return {one["ip"]: one["pod"] for one in self.document["reservations"]}

    def having(self, state: str) -> set[str]:
        """The addresses with a state."""
        return {ip for ip, found in self.states.items() if found == state}

    def subjects(self, detector: str) -> dict[str, dict[str, Any]]:
        """The findings of one detector, by subject."""
        return {
            one["subject"]: one for one in self.document["findings"] if one["detector"] == detector
        }

    @property
    def findings(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.document["findings"]
        return found

    @property
    def insufficient_data(self) -> set[str]:
        return {one["detector"] for one in self.document["insufficient_data"]}

    @property
    def network(self) -> dict[str, Any]:
        (network,) = self.document["networks"]
        return dict(network)

    @property
    def verdicts(self) -> object:
        """All verdicts, without times and names."""
        return (
            self.states,
            self.network,
            sorted((one["detector"], one["subject"], one["cause"]) for one in self.findings),
        )


class Cleaned(Output):
    """Of `clean`."""

    @property
    def addresses(self) -> dict[str, dict[str, Any]]:
        return {one["ip"]: one for one in self.document["addresses"]}

    @property
    def verdicts(self) -> dict[str, str]:
        """The verdict for each address; for a refused one, the main reason."""
        return {ip: one["reason"] or one["verdict"] for ip, one in self.addresses.items()}

    @property
    def released(self) -> set[str]:
        return {ip for ip, verdict in self.verdicts.items() if verdict == "released"}

    @property
    def settings(self) -> list[str]:
        """The options that override all refusals, according to the output."""
        told = [one["setting"].split() for one in self.addresses.values() if one["setting"]]
        return sorted({option for options in told for option in options})

    @property
    def free(self) -> tuple[int | None, int | None]:
        """The free addresses before and after."""
        (network,) = self.document["networks"]
        return network["free_before"], network["free_after"]


def release(clean: Callable[[], Cleaned], expected: Iterable[str]) -> set[str]:
    """Repeat a cleanup until it has released all of these, and nothing else; return them.

    The kernel ends the namespaces of killed pods later, and keeps what answers until then.
    """
    wanted, released = set(expected), set[str]()

    def check() -> set[str]:
        cleaned = clean()
        released.update(cleaned.released)
        assert released == wanted, cleaned.verdicts
        return released

    return eventually(check)


class Nodeleak:
    """The command, configured for this cluster."""

    def __init__(self, cluster: Cluster, logs: Path) -> None:
        self.state_dir = logs.with_name("state")
        self._settings = environment(
            NODELEAK_NODE=cluster.node,
            NODELEAK_KUBECONFIG=str(cluster.kubelet),
            NODELEAK_STATE_DIR=str(self.state_dir),
            NODELEAK_CLEANUP_NETWORK="auto",
        )
        self._logs = logs

    def scan(
        self, *options: str | Path, codes: Sequence[int] = (0,), wrapped: Sequence[str] = ()
    ) -> Report:
        done = run(
            *wrapped, NODELEAK, "scan", "-o", "json", *options, codes=codes, env=self._settings
        )
        return Report(done.returncode, json.loads(done.stdout))

    def screen(self, *options: str | Path, wrapped: Sequence[str] = ()) -> str:
        """Return the text of `scan`."""
        return run(*wrapped, NODELEAK, "scan", *options, codes=(0, 3), env=self._settings).stdout

    def clean(
        self, *options: str | Path, codes: Sequence[int] = (0,), wrapped: Sequence[str] = ()
    ) -> Cleaned:
        done = run(
            *wrapped, NODELEAK, "clean", "-o", "json", *options, codes=codes, env=self._settings
        )
        return Cleaned(done.returncode, json.loads(done.stdout))

    def cleaning(self, *options: str) -> "subprocess.Popen[str]":
        """Start a cleanup and return at once."""
        return subprocess.Popen(  # noqa: S603 (our own command)
            [NODELEAK, "clean", "-o", "json", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            env=self._settings,
        )

    def restore(
        self, *options: str, codes: Sequence[int] = (0,), wrapped: Sequence[str] = ()
    ) -> str:
        """Return its text as one line: sentences may be broken anywhere."""
        done = run(*wrapped, NODELEAK, "restore", *options, codes=codes, env=self._settings)
        return " ".join(done.stdout.split())

    def resume(self) -> str:
        return run(NODELEAK, "resume", env=self._settings).stdout

    def journal(self) -> list[dict[str, Any]]:
        """Return the entries of the journal, which must not be damaged."""
        document = json.loads(run(NODELEAK, "journal", "-o", "json", env=self._settings).stdout)
        assert document["damage"] == []
        entries: list[dict[str, Any]] = document["entries"]
        return entries

    def record(self, *options: str) -> str:
        return run(NODELEAK, "record", *options, env=self._settings).stdout

    def timeline(self, *options: str) -> list[dict[str, Any]]:
        """Return the events of the timeline, oldest first."""
        document = json.loads(
            run(NODELEAK, "timeline", "-o", "json", *options, env=self._settings).stdout
        )
        events: list[dict[str, Any]] = document["events"]
        return events

    @contextmanager
    def running(
        self,
        *options: str,
        wrapped: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
        address: str = "127.0.0.1",
    ) -> Iterator["Daemon"]:
        """Run the daemon, which listens at an address; its log is printed if the test fails."""
        log = self._logs / f"run-{len(list(self._logs.iterdir()))}.log"
        command = [
            *("setpriv", "--pdeathsig=TERM", "--"),  # it would clean beside the next run
            *wrapped,
            str(NODELEAK),
            "run",
            f"--listen={address}:0",
            "--log-format=json",
            *options,
        ]
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 (our own command)
                command,
                stdin=subprocess.DEVNULL,
                stderr=output,
                env=self._settings | dict(settings or {}),
            )
        try:
            daemon = Daemon(process, log, address)
            eventually(lambda: daemon.get("/readyz"))
            yield daemon
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
            print(f"{' '.join(command)}\n{log.read_text()}")  # noqa: T201 (pytest shows it if the test fails)


class Daemon:
    """A running daemon."""

    def __init__(
        self, process: subprocess.Popen[bytes], log: Path, address: str = "127.0.0.1"
    ) -> None:
        self.process, self.log, self.address = process, log, address

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self.lines() if line["event"] == name]

    def lines(self) -> list[dict[str, Any]]:
        """Return the log lines, without an incomplete last line."""
        return [
            json.loads(line)
            for line in self.log.read_text().splitlines(keepends=True)
            if line.endswith("\n")
        ]

    @property
    def port(self) -> int:
        started = self.events("agent.started")
        assert started, self.log.read_text()
        port: int = started[0]["port"]
        return port

    @property
    def url(self) -> str:
        return f"http://{self.address}:{self.port}"

    def get(self, path: str) -> str:
        assert self.process.poll() is None, f"the agent exited: {self.log.read_text()}"
        return get(f"{self.url}{path}")

    def report(self) -> Report:
        return last_report(self.get)

    def metrics(self) -> "Metrics":
        return Metrics(self.get("/metrics"))

    def syncs(self) -> float:
        return self.metrics().total("sync_seconds_count")

    def unavailable(self) -> set[str]:
        return self.report().unavailable

    def opened(self, detector: str) -> dict[str, dict[str, Any]]:
        """Return the logged finding.opened events by subject; each may occur once."""
        lines = [line for line in self.events("finding.opened") if line["detector"] == detector]
        again = [
            subject
            for subject, times in Counter(line["subject"] for line in lines).items()
            if times > 1
        ]
        assert not again, f"opened more than once: {again}"
        return {line["subject"]: line for line in lines}


class Metrics:
    """The content of `/metrics`."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def get(self, name: str, **labels: str) -> float | None:
        """Return a value; None if it is absent, which means unknown."""
        return self._samples.get((f"nodeleak_{name}", frozenset(labels.items())))

    def up(self, source: str) -> float | None:
        return self.get("source_up", source=source)

    def by(self, label: str, name: str) -> dict[str, float]:
        """Return the values of a metric by one of its labels."""
        return {
            dict(labels)[label]: value
            for (one, labels), value in self._samples.items()
            if one == f"nodeleak_{name}"
        }

    def total(self, name: str) -> float:
        return sum(value for (one, _), value in self._samples.items() if one == f"nodeleak_{name}")

    @property
    def leaks_confirmed(self) -> dict[str, float]:
        return {
            cause: value
            for cause, value in self.by("cause", "leaks_confirmed_total").items()
            if value
        }


def last_report(get: Callable[[str], str]) -> Report:
    """Return a report whose sync the metrics show too. `get`: returns the content of a path.

    The exporters of a sync run one after the other. Without this, whoever has seen a state in one of
    the two may still find the state before in the other.
    """

    def check() -> Report:
        report = Report(0, json.loads(get("/api/v1/report")))
        measured = Metrics(get("/metrics")).get("last_sync_timestamp_seconds")
        reported = datetime.fromisoformat(report.document["taken_at"]).timestamp()
        assert measured is not None, "no sync in the metrics yet"
        # Times in JSON have no fractions, and syncs begin at least a second apart.
        assert int(measured) == reported, f"metrics of {measured}, report of {reported}"
        return report

    return eventually(check, seconds=60)
