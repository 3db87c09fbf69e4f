"""clean, restore and journal as processes, on a copy of the node of the incident: output, changes and exit codes."""

import ctypes
import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from agent.cleanup import guards, run
from agent.cleanup.journal_store import MAX_ENTRIES
from agent.cli import main
from tests.cleanup.stores import Store, immutable, in_child, refuse
from tests.cli.commands import (
    AGENT,
    BLOCKED,
    DONE,
    FAILED,
    INTERRUPTED,
    OUTPUT,
    USAGE,
    Daemon,
    Done,
    environment,
    nodeleak,
    running,
    served,
    syncs,
)
from tests.cli.test_networks import Stand, standing
from tests.fakes.nodes import FakeNode, the_incident
from tests.wire import FakeServer, hang, needs, only_with, open_directory, until

LEAKED = 7
ALL = 125
NO_JOURNAL = "No journal in {}: nothing was released from here, or --state-dir is wrong\n"


class Incident(Stand):
    """The node, with commands that use no API server unless a test says so, and its journal."""

    @property
    def state(self) -> Path:
        return self.host.state

    @property
    def leaks(self) -> list[str]:
        """Return the leaked addresses, oldest first."""
        return [sandbox.ip for sandbox in sorted(self.node.leaked, key=lambda one: one.made)]

    def file(self, ip: str) -> tuple[bytes, int, int]:
        path = self.host.store / ip
        found = path.stat()
        return path.read_bytes(), found.st_mode, found.st_mtime_ns

    def checkpoint(self, reservation: bytes) -> None:
        """Let the kubelet have a record of the sandbox again."""
        container_id = reservation.decode().partition("\r\n")[0]
        other = next(self.host.checkpoints.iterdir())
        (self.host.checkpoints / container_id).write_bytes(other.read_bytes())

    def files(self) -> dict[str, tuple[bytes, int]]:
        """Return every file of the node, and of us."""
        paths = (
            path for path in self.host.root.rglob("*") if path.is_file() and not path.is_symlink()
        )
        return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}

    def options(self, api: str = "off", *more: str) -> list[str]:
        return super().options(api, *more)

    def clean(self, *arguments: str, api: str = "off", **more: Any) -> Done:
        return nodeleak(
            "clean",
            *self.options(api),
            *arguments,
            **{"NODELEAK_CLEANUP_NETWORK": "kubenet", **more},
        )

    def document(self, *arguments: str, code: int = 0, **more: Any) -> Any:
        done = self.clean("-o", "json", *arguments, **more)
        assert (done.code, done.err) == (code, ""), done
        return json.loads(done.out)

    @property
    def journal_directory(self) -> Path:
        return self.state / "journal"

    def change_entries(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Rewrite every entry of the journal, as it is where we were killed before the last write."""
        for path in self.journal_directory.iterdir():
            tree = json.loads(path.read_text())
            path.write_text(json.dumps(tree | change(tree)))

    def restore(self, *arguments: str, **more: Any) -> Done:
        return nodeleak("restore", *self.host.restore_options, *arguments, **more)

    def journal(self, *arguments: str) -> Done:
        return nodeleak("journal", f"--state-dir={self.state}", *arguments)

    def entries(self) -> list[Any]:
        found: list[Any] = json.loads(self.journal("-o", "json").out)["entries"]
        return found


@contextmanager
def simulated(
    home: Path, change: Callable[[FakeNode], FakeNode] = lambda node: node
) -> Iterator[Incident]:
    """Simulate the node of the incident, changed by a test."""
    node = change(the_incident(datetime.now(UTC)))  # noqa: TID251 (a stand-in's files are as old as a real one's)
    with standing(home, node) as stand:
        yield Incident(node, stand.host)


@pytest.fixture
def incident(tmp_path: Path) -> Iterator[Incident]:
    with simulated(tmp_path) as made:
        yield made


@contextmanager
def host_local(store: Path) -> Iterator[None]:
    """Hold the lock as an ADD does that takes its time."""
    with (store / "lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def opened(path: Path) -> Iterator[Callable[[], bool]]:
    """Tell whether anybody has opened a file since: inotify, which Python's library lacks."""
    libc = ctypes.CDLL(None)
    handle = libc.inotify_init1(os.O_NONBLOCK)
    in_open = 0x20

    def check() -> bool:
        with suppress(BlockingIOError):
            return bool(os.read(handle, 4096))
        return False

    try:
        assert libc.inotify_add_watch(handle, os.fsencode(path), in_open) >= 0
        yield check
    finally:
        os.close(handle)


# A dry run


@pytest.mark.parametrize("command", ["clean", "run"])
def test_nothing_is_released_while_no_network_is_named(incident: Incident, command: str) -> None:
    (incident.host.networks / "storage").mkdir()
    before = incident.files()
    applied = {"clean": ["--apply"], "run": ["--cleanup=auto", "--listen=127.0.0.1:0"]}[command]
    done = nodeleak(command, *incident.options(), *applied)
    assert (done.code, done.out) == (USAGE, "")
    assert done.err.splitlines()[0] == (
        "nodeleak: --cleanup-network (NODELEAK_CLEANUP_NETWORK) is not set: name the networks whose leaked addresses "
        "may be released, or auto for those that pods of this node use "
        f"(networks in {incident.host.networks}: kubenet, storage)"
    )
    assert incident.files() == before
    dry = nodeleak("clean", *incident.options())
    assert dry.code == DONE
    first, _, step, advised, *_ = dry.out.splitlines()[1:]
    assert first == (
        "DRY RUN: nothing was changed. "
        "7 addresses can be released (kubenet: 0 free now, 7 afterwards)."
    )
    assert step == "    1. Release 7 addresses:"
    assert advised.split()[:4] == ["nodeleak", "clean", "--apply", "--cleanup-network=auto"]
    assert "7 would be released" in dry.out.splitlines()[-2]
    named = nodeleak("clean", *incident.options(), "-o", "name")
    assert sorted(named.out.splitlines()) == sorted(f"kubenet/{ip}" for ip in incident.leaks)
    assert named.err == f"{done.err.splitlines()[0]}\n"
    assert incident.files() == before


def test_the_commands_that_scan_prints_are_told_about_the_node_as_scan_was(
    incident: Incident,
) -> None:
    quick: dict[str, Any] = {"NODELEAK_CONFIRM_AFTER": "1ms"}
    where = [f"--state-dir={incident.state}", "--api=off", *incident.host.options]
    page = nodeleak("scan", "--grace=1m", *where, **quick).out
    listed, released = (
        line.split() for line in page.splitlines() if line.strip().startswith("nodeleak clean")
    )
    assert "--grace=1m" not in listed
    assert "7 would be released" in nodeleak(*listed[1:], **quick).said
    assert "7 released" in nodeleak(*released[1:], **quick).said


def test_no_variable_can_allow_a_release(incident: Incident) -> None:
    before = incident.files()
    assert incident.document("--dry-run")["applied"] is False
    assert incident.document(NODELEAK_CLEANUP="auto", NODELEAK_MAX_PER_SYNC="5")["applied"] is False
    for name in ("APPLY", "IP", "MAX"):
        done = incident.clean(**{f"NODELEAK_{name}": "1"})
        assert done.code == 2, done
        assert done.err.startswith(f"nodeleak: NODELEAK_{name}: unknown setting")
    assert incident.clean("--app").code == 2
    assert incident.files() == before


# Releases


@pytest.mark.parametrize("api", ["on", "off"])
def test_apply_releases_once_what_a_dry_run_lists_and_nothing_else(
    incident: Incident, api: str
) -> None:
    files, before = incident.files(), incident.reserved
    assert (len(before), len(incident.leaks)) == (ALL, LEAKED)
    done = incident.clean(api=api)
    assert (done.code, done.err) == (0, "")
    for text in (
        "DRY RUN: nothing was changed",
        "7 would be released",
        "Free addresses in kubenet: 0 now, 7 afterwards",
    ):
        assert text in done.said
    assert (incident.files() == files, incident.state.exists()) == (True, False)
    tree = incident.document("--apply", api=api)
    assert {one["ip"]: one["verdict"] for one in tree["addresses"]} == dict.fromkeys(
        incident.leaks, "released"
    )
    assert tree["networks"] == [{"network": "kubenet", "free_before": 0, "free_after": LEAKED}]
    assert (tree["applied"], tree["verdicts"]["released"], tree["verdicts"]["failed"]) == (
        True,
        LEAKED,
        0,
    )
    assert before - incident.reserved == set(incident.leaks)
    lost = tuple(f"kubenet-{sandbox.id}" for sandbox in incident.node.leaked)
    assert not [one for one in incident.host.cache.iterdir() if one.name.startswith(lost)]
    assert [one["addresses"] for one in incident.entries()] == [[ip] for ip in incident.leaks]
    files, done = incident.files(), incident.clean("--apply", api=api)
    assert (done.code, done.err, incident.files() == files) == (0, "", True)
    assert "Nothing to release." in done.said
    assert "Free addresses in kubenet: 7 before, 7 after" in done.said


def test_max_releases_the_oldest_first_and_ip_only_these_addresses(incident: Incident) -> None:
    first, second, third, fourth, *_ = incident.leaks
    tree = incident.document("--apply", "--max=2")
    assert [one["ip"] for one in tree["addresses"] if one["verdict"] == "released"] == [
        first,
        second,
    ]
    assert {one["reason"] for one in tree["addresses"]} == {None, "over_budget"}
    tree = incident.document("--apply", f"--ip={third}", f"--ip={fourth}")
    assert [address["ip"] for address in tree["addresses"]] == [third, fourth]
    assert len(incident.reserved) == ALL - 4
    in_use = incident.node.running[0].ip
    before = incident.files()
    tree = incident.document("--apply", f"--ip={in_use},10.9.9.9")
    assert tree["passed_over"] == [
        {"network": "kubenet", "ip": in_use, "why": "in use: its container is running"},
        {"network": None, "ip": "10.9.9.9", "why": "not reserved"},
    ]
    incident.clean(f"--ip={in_use}", "--ip=10.9.9.9", "-o", "wide").shows(
        0,
        f"{in_use}: nothing to release: in use: its container is running\n",
        "10.9.9.9: nothing to release: not reserved\n",
    )
    assert incident.files() == before


# Refusals and failures


def test_refusals_are_no_failure_and_are_explained_once(incident: Incident) -> None:
    (incident.host.networks / "cbr0").mkdir()
    done = incident.clean(
        "--apply", "--settle=1d", "--network=kubenet,cbr0", "--cleanup-network=cbr0"
    )
    assert done.code == 0
    assert done.said.count("refused: network_not_allowed, unsettled") == LEAKED
    assert done.said.count("and --settle is 86400 s") == 1
    assert "--settle=0s" not in done.said
    assert (
        done.said.count(
            "(7 addresses): cleanup is not allowed in network kubenet; override with --cleanup-network="
        )
        == 1
    )
    assert "0 released, 7 refused (7 network_not_allowed)" in done.said
    assert len(incident.reserved) == ALL
    made = datetime.now(UTC) - timedelta(seconds=30)  # noqa: TID251 (as above)
    os.utime(incident.host.store / incident.leaks[0], (made.timestamp(), made.timestamp()))
    young = f"not_confirmed ({incident.leaks[0]}): 3"  # its age
    incident.clean("--apply").shows(0, young, "6 released, 1 refused (1 not_confirmed)")


def test_without_a_journal_or_the_lock_nothing_is_released(incident: Incident) -> None:
    incident.state.write_text("not a directory")
    tree = incident.document("--apply", code=OUTPUT)
    assert {one["reason"] for one in tree["addresses"]} == {"journal_unwritable"}
    dry = incident.document(code=BLOCKED)
    assert (dry["applied"], [one["by"] for one in dry["blockers"]]) == (
        False,
        ["journal_unwritable"],
    )
    incident.state.unlink()
    for directory in (incident.state / "cleaner.lock", incident.journal_directory / "x.json"):
        directory.mkdir(parents=True)
        tree = incident.document("--apply", code=OUTPUT)
        assert {one["reason"] for one in tree["addresses"]} == {"journal_unwritable"}
        directory.rmdir()
    with host_local(incident.host.store):
        tree = incident.document("--apply", "--lock-timeout=50ms", code=FAILED)
    assert {one["verdict"] for one in tree["addresses"]} == {"busy"}
    assert len(incident.reserved) == ALL


def test_while_a_source_is_unavailable_nothing_is_released(
    incident: Incident, tmp_path: Path
) -> None:
    before, both = incident.files(), "--network=kubenet,cbr0"
    hanging: FakeServer = FakeServer(lambda _: hang(hanging), at=tmp_path / "silent.sock")
    with hanging:
        done = incident.clean("--apply", "--docker-timeout=200ms", f"--docker-host={hanging.url}")
    assert (done.code, incident.files() == before) == (3, True)
    assert (
        "Nothing can be released, because these sources are unavailable:\n  containers: "
        in done.out
    )
    assert "Nothing to release." not in done.said
    assert incident.document(both, "--cleanup-network=kubenet,cbr0", code=3)["blockers"] == []
    tree = incident.document("--apply", both, code=3)
    assert [one["source"] for one in tree["unavailable"]] == ["reservations"]
    assert {one["reason"] for one in tree["addresses"]} <= {"source_unavailable"}
    shutil.rmtree(incident.host.checkpoints)  # as where docker's are not mounted
    before, done = incident.files(), incident.clean("--apply")
    assert (done.code, incident.files() == before) == (3, True)
    assert "checkpoints: none of these exists: " in done.said
    assert "deploy/overlays/docker" in done.said
    assert len(incident.reserved) == ALL


def test_a_missing_permission_is_reported(incident: Incident) -> None:
    needs(os.geteuid() == 0, "root, to be nobody for a while")
    incident.host.root.chmod(0o755)
    nobody = ("setpriv", "--reuid=65534", "--clear-groups")
    only_with(nodeleak("--version", prefix=nobody).code == 0, "a Python that nobody may run")
    with open_directory() as elsewhere:
        done = nodeleak("journal", f"--state-dir={elsewhere}", prefix=nobody)
        assert (done.code, done.out) == (0, NO_JOURNAL.format(elsewhere))
        (elsewhere / "journal").mkdir(mode=0o700)
        nodeleak("journal", f"--state-dir={elsewhere}", prefix=nobody).fails(2, "permission denied")


# Restoring


def test_restore_puts_back_every_byte(incident: Incident) -> None:
    before = {ip: incident.file(ip) for ip in incident.leaks}
    incident.clean("--apply")
    torn = incident.journal_directory / "torn.json"
    torn.write_text('{"schema": "nodeleak.jou')
    incident.journal().shows(0, *incident.leaks, f"damaged: {torn}: ")
    assert "warning: journal: " in incident.clean().said
    torn.unlink()
    incident.restore("--last").shows(0, f"would restore: {incident.leaks[-1]} for container ")
    assert len(incident.reserved) == ALL - LEAKED
    for ip in incident.leaks:
        done = incident.restore(ip, "--apply")
        assert done.code == 0
        assert done.out.startswith(f"restored: {ip} for container ")
        assert "warning" not in done.said
    assert {ip: incident.file(ip) for ip in incident.leaks} == before
    assert incident.journal().said.count(", restored ") == LEAKED
    incident.restore("--last").fails(2, "has no release that can be restored")


def test_a_restoration_of_the_last_release_says_what_the_same_command_restores_next(
    incident: Incident,
) -> None:
    incident.clean("--apply", "--max=2")
    older, newer = (entry["addresses"] for entry in incident.entries())
    again = "The same command again restores an earlier release: "
    assert again not in incident.restore("--last").said, "a dry run changes nothing"
    incident.restore("--last", "--apply").shows(0, f"restored: {newer[0]} ", f"{again}{older[0]}, ")
    done = incident.restore("--last", "--apply")
    done.shows(0, f"restored: {older[0]} ")
    assert again not in done.said


FULL_STORE = """
copy=$(mktemp -d) && cp -a {store}/. $copy && mount -t tmpfs -o nr_inodes=$(($(ls $copy | wc -l) + 1)) none {store} &&
cp -a $copy/. {store} && rm -r $copy && exec "$@"
"""
"""Give a command a store of its own, in which no file can be created."""


def test_a_restoration_that_fails_is_not_recorded_as_done(incident: Incident) -> None:
    ip = incident.leaks[0]
    kept = incident.file(ip)[0]
    assert incident.clean("--apply", "--max=1").code == 0
    (incident.host.store / ip).write_text("f" * 64 + "\r\neth0")  # it is reserved again
    before, why = incident.files(), f"{ip} of network kubenet is reserved again"
    for arguments, verb in (([], "would not restore"), (["--apply"], "not restored")):
        incident.restore(ip, *arguments).shows(FAILED, f"{verb}: {ip} for container ", why)
    assert incident.files() == before
    (incident.host.store / ip).unlink()
    needs(os.geteuid() == 0, "root, to mount a full file system in a namespace of its own")
    script = FULL_STORE.format(store=incident.host.store)
    prefix = ("unshare", "-m", "/bin/sh", "-c", script, "sh")
    incident.restore(ip, "--apply", prefix=prefix).shows(FAILED, "no space left on device")
    (entry,) = incident.entries()
    assert (entry["outcome"], entry["restored"], entry["restoring"]) == ("released", None, None)
    assert entry["why"] == f"not restored: {ip}: no space left on device"
    assert f"would restore: {ip} " in incident.restore("--last").said
    incident.checkpoint(kept)
    assert "Cleanup halted: released container " in incident.clean().said, "it is still watched for"


def test_a_restoration_that_was_killed_is_finished_by_the_next_one_or_by_a_cleanup(
    incident: Incident,
) -> None:
    """It may have died before the file was put back, or after."""
    ips = incident.leaks[:2]
    before = {ip: incident.file(ip) for ip in ips}
    assert incident.clean("--apply", "--max=2").code == 0
    for ip in ips:
        assert incident.restore(ip, "--apply").code == 0
    incident.change_entries(lambda tree: {"restoring": tree["restored"], "restored": None})
    (incident.host.store / ips[1]).unlink()
    assert incident.journal().said.count("restoration unfinished") == 2
    assert (
        incident.clean().said.count("is unfinished, the next cleanup or restore recovers it") == 2
    )
    assert f"would restore: {ips[1]} " in incident.restore("--last").said, "not an older one"
    done = incident.restore("--last", "--apply")
    assert (done.code, "restored: " in done.said) == (0, True)
    assert {ip: incident.file(ip) for ip in ips} == before
    assert incident.journal().said.count(", restored ") == 2
    assert "halted" not in incident.clean().said
    incident.change_entries(lambda tree: {"restoring": tree["restored"], "restored": None})
    assert "1 released" in incident.clean("--apply", f"--ip={ips[0]}").said
    first, _, second = incident.entries()
    assert (first["addresses"], first["restored"] is None, first["outcome"]) == (
        [ips[0]],
        False,
        "released",
    )
    assert (second["addresses"], second["restored"], second["outcome"]) == (
        [ips[0]],
        None,
        "released",
    )


def test_the_evidence_of_a_release_is_what_was_asked(incident: Incident) -> None:
    """An empty file names no sandbox: nobody can be asked about it."""
    path = incident.host.store / incident.leaks[0]
    made = path.stat().st_mtime_ns
    path.write_bytes(b"")
    os.utime(path, ns=(made, made))
    assert "1 released" in incident.clean("--apply", "--max=1").said
    assert "1 released" in incident.clean("--apply", f"--ip={incident.leaks[0]}").said
    trees = (json.loads(path.read_text()) for path in sorted(incident.journal_directory.iterdir()))
    other, empty = (tree["evidence"] for tree in trees)  # no probe: the addresses are on no link
    assert empty == ["no process has the address configured"]
    assert other == [
        "the container runtime answered that there is no such container",
        "the kubelet has no checkpoint of the sandbox",
        "no process has the address configured",
        "libcni's cache names no mounted network namespace of the sandbox",
    ]


def test_without_a_journal_nothing_is_listed_and_nothing_can_be_restored(
    incident: Incident,
) -> None:
    done = incident.journal()
    assert (done.code, done.out, done.err) == (0, NO_JOURNAL.format(incident.state), "")
    assert incident.entries() == []
    for what in ("10.253.6.130", "\x1b[2J", "20260326T200000.000000Z-999999999999"):
        done = incident.restore(what, "--apply")
        done.fails(2, "run 'nodeleak journal' for a list of releases")
        assert "\x1b" not in done.err
    assert not incident.state.exists()


def test_a_halt_outlives_the_agent_and_its_cause_until_a_command_resumes_cleanup(
    incident: Incident,
) -> None:
    ip = incident.leaks[0]
    kept = incident.file(ip)[0]
    container_id = kept.decode().partition("\r\n")[0]
    assert nodeleak("resume", f"--state-dir={incident.state}").code == USAGE, "nothing has halted"
    incident.clean("--apply", "--max=1")
    (incident.host.store / ip).write_bytes(kept)
    done = incident.clean("--apply", f"--ip={ip}", "--grace=0s")
    assert "Cleanup halted" not in done.said, "a late plugin may have written it"
    assert len(incident.reserved) == ALL - 1
    incident.checkpoint(kept)
    before, dry = incident.files(), incident.clean()
    assert "Cleanup halted: released container " in dry.said
    assert (dry.code, incident.files() == before) == (BLOCKED, True), "a dry run records nothing"
    assert "No release is possible here:\n  cleanup halted: see below\n" in dry.out
    assert "refused: halted" in incident.clean("--apply").said
    (incident.host.checkpoints / container_id).unlink()
    for arguments in ((), ("--apply",)):
        assert (
            f"Cleanup halted: released container {container_id[:12]} reappeared"
            in incident.clean(*arguments).said
        )
    with syncing(incident, "--cleanup=auto", "--cleanup-network=auto") as (agent, port):
        agent.log_event("cleanup.halted")
        until(
            lambda: "nodeleak_cleanup_halted 1.0" in served(port, "/metrics")[1],
            "the metrics follow the log",
        )
        assert len(incident.reserved) == ALL - 1
        done = nodeleak("resume", f"--state-dir={incident.state}")
        resumed = f"resumed: released container {container_id[:12]} "
        assert (done.code, done.out.startswith(resumed)) == (DONE, True), done
        until(lambda: len(incident.reserved) == ALL - LEAKED, "cleanup goes on", 20)
    (first,) = (one for one in incident.entries() if one["halted"])
    assert first["halted"] <= first["resumed"]
    assert "halted" in incident.journal().said
    incident.checkpoint(kept)
    assert "Cleanup halted" in incident.clean("--apply").said, "again"
    assert nodeleak("resume", f"--state-dir={incident.state}").code == DONE


# The journal

ENTRY: Final = {
    "schema": "nodeleak.journal/v1",
    "began": "2026-03-26T20:00:00.000000Z",
    "by": "clean",
    "container_id": "9" * 64,
    "pod": "",
    "files": [],
}


def test_a_run_releases_no_more_than_the_journal_can_hold_until_its_entries_are_old(
    incident: Incident,
) -> None:
    directory = incident.journal_directory
    directory.mkdir(parents=True)
    first = json.dumps({**ENTRY, "entry": "0000", "outcome": "released"})
    filling = [directory / f"{number:04}.json" for number in range(MAX_ENTRIES - 3)]
    for path in filling:
        path.write_text(first.replace('"0000"', f'"{path.stem}"'))
    done = incident.clean("--apply")
    done.shows(
        0,
        "3 released, 4 refused (4 journal_full)",
        f"the journal is full until {directory}/0000.json is 24 hours old",
    )
    assert "override" not in done.said
    released = [one["addresses"] for one in incident.entries() if one["addresses"]]
    assert released == [[ip] for ip in incident.leaks[:3]]
    assert "The journal has no room" in nodeleak("explain", "journal_full").said
    assert "0 released, 4 refused (4 journal_full)" in incident.clean("--apply").said
    assert (incident.clean().code, len(incident.reserved)) == (BLOCKED, ALL - 3)
    # What a protection needs stays, however old it is.
    filling[0].write_text(
        first.replace('"outcome"', '"restored": "2026-03-26T20:00:00Z", "outcome"')
    )
    filling[1].write_text("{}")
    for path in filling[:10]:
        os.utime(path, (0, 0))
    assert "4 released" in incident.clean("--apply").said
    assert len(list(directory.iterdir())) == MAX_ENTRIES
    assert [path for path in filling if not path.exists()] == filling[2:6]


# Standard output and signals


def test_whatever_becomes_of_its_output_it_releases_and_writes_the_journal(
    incident: Incident,
) -> None:
    for number, closed in enumerate((">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"), 1):
        done = incident.clean(
            "--apply", "--max=1", prefix=("/bin/sh", "-c", f'exec "$@" {closed}', "sh")
        )
        assert (done.code, done.err) == (0, "")
        assert len(incident.reserved) == ALL - number
    script = f'"$@" | head -c 1; echo ${{PIPESTATUS[0]}} >{incident.host.root}/code'
    journal = ["journal", f"--state-dir={incident.state}"]
    for command in (["clean", *incident.options(), "--cleanup-network=kubenet"], journal):
        done = nodeleak(*command, prefix=("/bin/bash", "-c", script, "x"))
        assert (done.err, (incident.host.root / "code").read_text()) == ("", "0\n"), (
            "a broken pipe is no error"
        )
    needs(Path("/dev/full").exists(), "/dev/full")
    done = incident.clean("--apply", prefix=("/bin/sh", "-c", 'exec "$@" >/dev/full', "sh"))
    assert (done.code, done.err) == (
        OUTPUT,
        "nodeleak: cannot write the output: no space left on device\n",
    )
    tree = json.loads(incident.journal("-o", "json").out)
    assert ([one["outcome"] for one in tree["entries"]], tree["damage"]) == (
        ["released"] * LEAKED,
        [],
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_after_the_current_address(
    incident: Incident, number: signal.Signals
) -> None:
    command = [
        *AGENT,
        "clean",
        "--apply",
        "--cleanup-network=kubenet",
        "--lock-timeout=1m",
        *incident.options(),
    ]
    with host_local(incident.host.store), opened(incident.host.store / "lock") as at_work:
        process = subprocess.Popen(  # noqa: S603 (ours)
            command, env=environment({}), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        until(at_work, "it waits for the lock", 20)
        process.send_signal(number)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
    output, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (INTERRUPTED, "")
    assert "1 released, 6 interrupted" in output
    assert [one["outcome"] for one in incident.entries()] == ["released"]
    assert len(incident.reserved) == ALL - 1
    assert "6 released" in incident.clean("--apply").said


def test_after_a_kill_no_release_is_claimed_that_another_process_may_have_made(
    incident: Incident,
) -> None:
    """On disk, a kill before the removal and the kubelet's own DEL look the same as a kill after the removal."""
    ip = incident.leaks[0]
    kept = incident.file(ip)
    assert "1 released" in incident.clean("--apply", "--max=1").said
    incident.change_entries(lambda _: {"outcome": None})
    assert "unfinished" in incident.journal().said
    before = incident.files()
    assert "is unfinished, the next cleanup or restore recovers it" in incident.clean().said
    assert incident.files() == before, "a dry run recovers nothing"
    unknown = "it is not known whether this release or another process removed"
    done = incident.restore("--last", "--apply")
    assert (done.code, unknown in done.said) == (FAILED, True)
    (entry,) = incident.entries()
    assert (entry["outcome"], entry["restored"]) == ("in_doubt", None)
    assert unknown in entry["why"]
    done = incident.restore("--last", "--apply")
    assert (done.code, ip in incident.reserved) == (USAGE, False)
    assert f"run 'nodeleak restore {entry['entry']}'" in done.err
    assert incident.restore(ip, "--apply").code == 0
    assert incident.file(ip) == kept
    assert "1 released" in incident.clean("--apply", f"--ip={ip}").said
    incident.change_entries(lambda tree: {} if tree["restored"] else {"outcome": None})
    assert "6 released" in incident.clean("--apply").said, "a cleanup recovers it too"
    assert "unfinished" not in incident.journal().said
    assert len(incident.reserved) == ALL - LEAKED


def test_a_partly_released_sandbox_is_found_and_restored(tmp_path: Path) -> None:
    store = Store(tmp_path)
    where = (
        f"--state-dir={store.state}",
        f"--cni-networks-dir={store.networks}",
        f"--cni-cache-dir={store.caches[0]}",
    )
    store.release(store.reserve("10.244.1.5", "5" * 64))
    reserved = [store.reserve(), store.reserve("fd00:10::9")]
    before = store.files()

    def release() -> None:
        refuse("os.link", errno.EIO, when=lambda _: True)
        outcome = store.release(*reserved)
        assert "the sandbox may be partly released" in outcome.why

    with immutable(store.network() / "fd00:10::9"):
        in_child(release)
    assert list(store.files()) == ["kubenet/fd00:10::9"]
    assert "10.244.1.9, fd00:10::9 for container" in nodeleak("restore", "--last", *where).said
    done = nodeleak("restore", "10.244.1.9", "--apply", *where)
    assert (done.code, store.files()) == (DONE, before), done


def test_a_network_that_cannot_be_changed_is_named_and_others_can_be_cleaned(
    incident: Incident,
) -> None:
    needs(os.geteuid() == 0, "root, to mount the store read-only in a namespace of its own")
    store, storage = incident.host.store, incident.host.networks / "storage"
    prefix = (
        "unshare",
        "-m",
        "/bin/sh",
        "-c",
        'mount --bind -o ro "$0" "$0" && exec "$@"',
        str(store),
    )
    dry = incident.clean(prefix=prefix)
    dry.shows(
        BLOCKED, f"cannot change {store}: read-only mount: to release, create a Job (kubectl "
    )
    assert "--apply" not in dry.said
    pod: dict[str, Any] = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "NODELEAK_CLEANUP_NETWORK": ""}
    job = "\n         kubectl nodeleak clean-job vm --apply --run -- "
    incident.clean(prefix=prefix, **pod).shows(
        BLOCKED,
        "DRY RUN: nothing was changed. 7 addresses can be released",
        "This pod does not release: run this on your machine:",
        job,
    )
    assert [one["by"] for one in incident.document(code=BLOCKED, prefix=prefix)["blockers"]] == [
        "network_unwritable"
    ]
    incident.clean("--apply", prefix=prefix).shows(
        FAILED, "read-only mount: to release, create a Job (kubectl nodeleak clean-job, or deploy/"
    )
    assert len(incident.reserved) == ALL
    storage.mkdir()
    (storage / "10.9.0.2").write_bytes((store / incident.node.running[0].ip).read_bytes())
    incident.clean(
        "--network=kubenet,storage", "--cleanup-network=kubenet,storage", prefix=prefix
    ).shows(
        DONE,
        f"No release is possible in network kubenet: cannot change {store}: read-only mount: ",
        "DRY RUN: nothing was changed.",
        "7 would be released (not possible in network kubenet)",
    )
    assert (
        incident.document("--network=kubenet,storage", prefix=(*prefix[:-1], str(storage)))[
            "blockers"
        ]
        == []
    )


# The daemon


@contextmanager
def syncing(incident: Incident, *options: str) -> Iterator[tuple[Daemon, int]]:
    """Run the daemon with short intervals; yield it and its port."""
    quick = ("--interval=100ms", "--confirm-after=100ms", "--listen=127.0.0.1:0")
    with running(*incident.options(), *quick, *options) as agent:
        yield agent, agent.log_event("agent.started")["port"]
        assert agent.end() == 0


def test_the_daemon_releases_a_few_per_sync_and_reports_them(incident: Incident) -> None:
    with syncing(incident, "--max-per-sync=3", "--cleanup=auto", "--cleanup-network=auto") as (
        agent,
        port,
    ):
        until(lambda: len(released(agent)) == LEAKED, "all are released", 20)
        until(
            lambda: 'nodeleak_releases_total{network="kubenet"} 7.0' in served(port, "/metrics")[1],
            "it is counted",
        )
        metrics = served(port, "/metrics")[1]
    assert released(agent) == incident.leaks
    for sample in (
        'nodeleak_mode_info{mode="clean"} 1.0',
        "nodeleak_cleanup_halted 0.0",
        "nodeleak_lock_held_seconds_count 7.0",
        "nodeleak_lock_wait_seconds_count 7.0",
        f"nodeleak_journal_bytes {float(sum(path.stat().st_size for path in incident.journal_directory.iterdir()))}",
    ):
        assert f"\n{sample}\n" in metrics
    events = [one["event"] for one in agent.events]
    assert (events.count("release.failed"), events.count("release.refused")) == (0, 4), (
        "four waited for their turn"
    )
    assert [one["by"] for one in incident.entries()] == ["run"] * LEAKED
    assert len(incident.reserved) == ALL - LEAKED


def test_the_daemon_logs_once_what_a_dry_run_would_release(incident: Incident) -> None:
    before = incident.files()
    with syncing(incident, "--interval=50ms", "--cleanup=dry-run") as (agent, port):
        agent.log_event("release.dry_run")
        before_count = syncs(port)
        until(lambda: syncs(port) > before_count + 5, "five more syncs")
    assert [
        one["ip"] for one in agent.events if one["event"] == "release.dry_run"
    ] == incident.leaks
    own = {str(incident.state / name) for name in ("device-plugins.json", "commands.lock")}
    assert {name: file for name, file in incident.files().items() if name not in own} == before
    assert not (incident.state / "journal").exists()


def released(agent: Daemon) -> list[str]:
    return [one["ip"] for one in agent.events if one["event"] == "address.released"]


def test_a_guard_that_fails_refuses_and_the_command_reports_the_bug(
    incident: Incident, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_request: Any, _context: Any) -> Any:
        raise KeyError("metadata")

    monkeypatch.setattr(guards, "GUARDS", (*guards.GUARDS, broken))
    monkeypatch.setenv("NODELEAK_CLEANUP_NETWORK", "kubenet")
    for apply in ((), ("--apply",)):
        code = main(["clean", *incident.options(), "--probe=off", *apply])
        out, err = capsys.readouterr()
        assert code == 70
        assert "guard_failed" in out
        assert "KeyError: 'metadata'" in err.splitlines()[-1]
        assert err.count("Traceback") == 1, "once, and not for each address"
    assert len(incident.reserved) == ALL


def test_a_bug_after_a_release_says_where_the_release_is_listed(
    incident: Incident, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise KeyError("metadata")

    monkeypatch.setattr(run, "summarize", broken)
    monkeypatch.setenv("NODELEAK_CLEANUP_NETWORK", "kubenet")
    for apply in ((), ("--apply", "--max=1")):
        assert main(["clean", *incident.options(), "--probe=off", *apply]) == 70
        out, err = capsys.readouterr()
        assert (out, "KeyError: 'metadata'" in err) == ("", True)
        told = "nodeleak: a bug ended this cleanup: 'nodeleak journal' lists what it has released"
        assert (told in err.splitlines()) == bool(apply)
    assert len(incident.reserved) == ALL - 1
    (listed,) = incident.entries()
    assert listed["outcome"] == "released"
