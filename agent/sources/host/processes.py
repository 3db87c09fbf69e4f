"""When the node, the kubelet and docker started, and with which flags, from the process table. Read-only."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from agent.model.snapshot import ProcessStartTimes
from agent.model.text import escape
from agent.sources.error import SourceError, cannot_read

_KUBELET = frozenset({"kubelet"})
_DOCKER = frozenset({"dockerd"})
_CRI_DOCKERD = frozenset({"cri-dockerd"})
_NODE = _KUBELET | _DOCKER | _CRI_DOCKERD | {"containerd", "crio", "k3s-server", "k3s-agent"}
_PLUGGED = _KUBELET | _CRI_DOCKERD
_ENDED = frozenset({"Z", "X"})
_START = 18
"""Field 22 of `/proc/<pid>/stat` (proc_pid_stat(5)), counted from 0 after the state, which follows the command."""


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    command: str
    start: int
    """Clock ticks after boot."""


class ProcessTable:
    """The node's process table. It remembers the relevant processes, because searching all of them is expensive."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._known: tuple[_Process, ...] = ()

    def read(self) -> ProcessStartTimes:
        """Return when each process started; raises SourceError if the table cannot be read or is not the node's.

        A table with neither a kubelet nor a container runtime is that of a container.
        """
        try:
            booted = _boot_time((self._proc / "stat").read_text())
            boot_id = (self._proc / "sys/kernel/random/boot_id").read_text().strip()
            self._known = self._still_known() or self._search()
        except OSError as error:
            raise SourceError(cannot_read(error.filename, error)) from error
        except (ValueError, IndexError) as error:
            raise SourceError(f"cannot parse {self._proc}: {error}") from error
        if not self._known:
            raise SourceError(
                f"no kubelet and no docker in {self._proc}: it is not the host's (set hostPID: true, or check --proc)"
            )
        kubelet, docker = self._first(_KUBELET, booted), self._first(_DOCKER, booted)
        return ProcessStartTimes(booted, boot_id, kubelet, docker, self._network_plugin() if kubelet else None)

    def kubelet_flags(self, *names: str) -> Mapping[str, str]:
        """Return those of these flags that the kubelet of the last reading was started with; raises SourceError.

        The rest of its command line may be confidential and is not kept.
        """
        pid = next((one.pid for one in self._known if one.command in _KUBELET), None)
        if pid is None:
            raise SourceError(f"no kubelet in {self._proc}")
        words = _command_line(self._proc, pid)
        if words is None:
            raise SourceError(f"cannot read {self._proc}/{pid}/cmdline: the kubelet's flags are unknown")
        return {name: value for name in names if (value := _flag(name, words)) is not None}

    def _still_known(self) -> tuple[_Process, ...]:
        """Return the remembered processes if all of them still run and none was missing."""
        complete = all(any(one.command in names for one in self._known) for names in (_KUBELET, _DOCKER))
        if complete and all(_process(self._proc, one.pid) == one for one in self._known):
            return self._known
        return ()

    def _search(self) -> tuple[_Process, ...]:
        pids = [int(name) for name in os.listdir(self._proc) if name.isdecimal()]
        found = (one for pid in pids if (one := _process(self._proc, pid)) and one.command in _NODE)
        return tuple(one for one in found if not _nested(self._proc, one.pid))

    def _network_plugin(self) -> str | None:
        """Read it from the command lines: no file has it. Since 1.24 it is a flag of cri-dockerd."""
        lines = [_command_line(self._proc, one.pid) for one in self._known if one.command in _PLUGGED]
        if any(words is None for words in lines):
            return None
        return next(filter(None, (_flag("network-plugin", words) for words in lines if words is not None)), "")

    def _first(self, names: frozenset[str], booted: datetime) -> datetime | None:
        starts = [one.start for one in self._known if one.command in names]
        return booted + timedelta(seconds=min(starts) / os.sysconf("SC_CLK_TCK")) if starts else None


def _command_line(proc: Path, pid: int) -> list[str] | None:
    """Return the arguments of a process; None: they cannot be read, or it is ending."""
    try:
        text = (proc / str(pid) / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return None
    return text.split("\0") if text else None


def _flag(name: str, words: list[str]) -> str | None:
    """Return the value of a flag, which follows as an argument or after `=`; the last one counts."""
    found = None
    for place, word in enumerate(words):
        given, equals, value = word.partition("=")
        if given == f"--{name}":
            found = value if equals else next(iter(words[place + 1 : place + 2]), "")
    return None if found is None else escape(found)


def _boot_time(text: str) -> datetime:
    for line in text.splitlines():
        if line.startswith("btime "):
            return datetime.fromtimestamp(int(line.split()[1]), UTC)
    raise ValueError("stat has no btime")


def _nested(proc: Path, pid: int) -> bool:
    """Whether a process has a PID namespace of its own: docker in docker is not the node's."""
    try:
        status = (proc / str(pid) / "status").read_text(errors="backslashreplace")
    except OSError:
        return False
    namespaces = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [])
    return len(namespaces) > 1


def _process(proc: Path, pid: int) -> _Process | None:
    """Return one process; None: it has ended."""
    try:
        text = (proc / str(pid) / "stat").read_text(errors="backslashreplace")
        # The command may hold any character, parentheses too.
        before, _, after = text.rpartition(")")
        state, *rest = after.split()
        # A zombie would hide its successor, and with it a restart of the kubelet.
        return None if state in _ENDED else _Process(pid, before.partition("(")[2], int(rest[_START]))
    except (OSError, ValueError, IndexError):
        return None
