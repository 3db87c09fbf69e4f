"""Every command that a scan advises releases what it announces: on the files of each recorded and built node.

The readings are those of the recordings; host-local's files, their locks and the journal are real, and stand in a
directory of their own. The runtime is asked again by a stand-in that has nobody.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agent.app import cleaning
from agent.checks import engine
from agent.cli.parser import config_of, parse_arguments
from agent.fleet.clean_job import clean_job
from agent.model.documents import Recording, dumps
from agent.model.release import Limits
from agent.model.runtime import RuntimeNetwork
from agent.model.snapshot import Known, NotRequested, Reservation, Snapshot
from tests import builders as b
from tests.cleanup.stores import Store
from tests.cli.commands import nodeleak
from tests.exporters.built import LOST, NODES, RECORDINGS, recording_of, small
from tests.fleet.test_clean_job import daemon_set

_STEP = re.compile(r"\d+\. (?P<step>.*[Rr]elease (?P<count>[\d,]+) address.*):$")
_WAIT = re.compile(r"In (\d+) minutes? ")
_PROGRAMS = ("nodeleak clean", "kubectl nodeleak clean-job")


@dataclass(frozen=True)
class Advised:
    command: list[str]
    count: int
    wait: timedelta


def advised(text: str) -> Iterator[Advised]:
    """Yield the commands that release, with what their step says before them."""
    text_of_step = ""
    for line in map(str.strip, text.splitlines()):
        if re.match(r"\d+\. ", line):
            text_of_step = line
        elif not line.startswith(_PROGRAMS):
            text_of_step += f" {line}"
        elif " --apply" in line:
            step = _STEP.search(text_of_step)
            count = int(step["count"].replace(",", "")) if step else 0
            waits = _WAIT.search(step["step"]) if step else None
            wait = timedelta(minutes=int(waits[1])) if waits else timedelta(0)
            yield Advised(shlex.split(line), count, wait)


def limits_of(words: list[str]) -> Limits:
    """Return what `nodeleak WORDS` may release, as the command itself reads them."""
    arguments = parse_arguments([*words, "--api=off"])
    only = None if arguments.ip is None else frozenset(arguments.ip)
    return cleaning.limits(config_of(arguments), only, dry_run=False)


def on_disk(store: Store, recording: Recording) -> Recording:
    """Write each reservation as a file, and return the recording with the files' inodes."""
    written: dict[tuple[str, str], Reservation] = {}

    def written_reservation(reservation: Any) -> Any:
        if not isinstance(reservation, Reservation):
            return reservation
        if reservation.key not in written:
            text = b"" if not reservation.container_id else None
            store.reserve(
                reservation.ip,
                reservation.container_id,
                network=reservation.network,
                ifname=reservation.ifname,
                content=text,
            )
            path = store.network(reservation.network) / reservation.ip
            store.set_time(path, reservation.mtime_ns)
            written[reservation.key] = store.find(reservation.ip, reservation.network)
        return written[reservation.key]

    def with_files(snapshot: Snapshot) -> Snapshot:
        stores = []
        for each in snapshot.reservations:
            reading = each.reading
            if isinstance(reading, Known):
                reading = Known(tuple(map(written_reservation, reading.value)))
            stores.append(replace(each, reading=reading))
        networks = snapshot.networks
        if isinstance(networks, NotRequested):  # an old recording; a command reads them
            read = {each.network for each in snapshot.reservations}
            networks = Known(
                tuple(RuntimeNetwork(name, ("bridge",), "host-local") for name in read)
            )
        return replace(snapshot, reservations=tuple(stores), networks=networks)

    return replace(recording, snapshots=tuple(map(with_files, recording.snapshots)))


def later(snapshot: Snapshot, wait: timedelta, gone: set[Any]) -> Snapshot:
    """Return what a command finds that waited, after others had released addresses."""
    stores = []
    for each in snapshot.reservations:
        reading = each.reading
        if isinstance(reading, Known):
            left = tuple(
                entry for entry in reading.value if getattr(entry, "key", None) not in gone
            )
            reading = Known(left)
        stores.append(replace(each, reading=reading))
    return replace(
        snapshot,
        taken_at=snapshot.taken_at + wait,
        uptime=snapshot.uptime + wait,
        reservations=tuple(stores),
    )


MORE: dict[str, Snapshot] = {
    "share-doubted": b.node(
        *(b.reservation(f"10.244.1.{n}", f"{n:064x}") for n in range(4, 14)),
        node=[small(13)],
        cni_results=[],
    ),
    "empty-files-and-an-old-range": b.node(
        LOST,
        b.empty_file("10.244.1.13"),
        b.empty_file("10.244.1.14"),
        *(b.reservation(f"10.9.9.{n}", f"{n:064x}") for n in range(4, 9)),
    ),
    "another-network": b.node(
        LOST, b.reservation("10.9.0.2", "5" * 64, network="storage", ifname="net1")
    ),
    "just-started": b.node(
        LOST, processes=[b.processes(docker=timedelta(seconds=70), kubelet=timedelta(seconds=30))]
    ),
}


def of_name(name: str) -> Recording:
    if name in MORE:
        return Recording(b.GRACE, b.GRACE * 0, (MORE[name],) * 2)
    return recording_of(name)


@pytest.mark.parametrize("name", [*RECORDINGS, *NODES, *MORE])
def test_a_command_that_a_scan_advises_releases_what_it_announces(
    name: str, tmp_path: Path
) -> None:
    store = Store(tmp_path)
    recording = on_disk(store, of_name(name))
    text = nodeleak("scan", "--recording=-", given=dumps(recording)).out
    commands = list(advised(text))
    gone: set[Any] = set()
    for each in commands:
        limits = limits_of(each.command[1:])
        snapshots = [later(one, each.wait, gone) for one in recording.snapshots]
        report = engine.replay(
            snapshots, grace=recording.grace, confirm_after=recording.confirm_after
        )
        last = snapshots[-1]
        session = store.cleaner(limits, at=last.taken_at)
        session.uptime = partial(getattr, last, "uptime")
        session.before_snapshot()
        outcomes = session.after_snapshot(snapshots, report).outcomes
        released = [
            leak.key
            for outcome in outcomes
            if outcome.verdict == "released"
            for leak in outcome.request.reservations
        ]
        assert len(released) == each.count, (
            each,
            [one for one in outcomes if one.verdict != "released"],
        )
        assert not [key for key in released if (store.network(key.network) / key.ip).exists()]
        gone.update(released)
    # Whoever has leaks is told a command, or why none helps.
    if "leaked pod address" in text:
        assert commands or re.search(r"No command releases|nothing is released before", text), text

    in_pod = nodeleak(
        "scan", "--recording=-", given=dumps(recording), KUBERNETES_SERVICE_HOST="10.0.0.1"
    ).out
    jobs = list(advised(in_pod))
    assert [job.count for job in jobs] == [each.count for each in commands]
    for job, each in zip(jobs, commands, strict=True):
        words = job.command[job.command.index("clean-job") + 1 :]
        rest = words[words.index("--") + 1 :] if "--" in words else []
        made = clean_job(daemon_set(), words[0], rest, apply=True)
        (container,) = made["spec"]["template"]["spec"]["containers"]
        assert limits_of(container["args"]) == limits_of(each.command[1:])


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("incident", 1),
        ("share-doubted", 1),
        ("empty-files-and-an-old-range", 2),
        ("another-network", 2),
        ("just-started", 1),
    ],
)
def test_there_is_one_command_for_what_needs_no_check_and_one_for_names(
    name: str, count: int
) -> None:
    text = nodeleak("scan", "--recording=-", given=dumps(of_name(name))).out
    assert len(list(advised(text))) == count, text
