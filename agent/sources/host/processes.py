"""When the node, the kubelet and the runtime started, with which flags, and which CNI plugins run. Read-only.

Of several processes of a kind the youngest counts: an older one (a wrapper, a second engine) must not hide a restart.
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO, Final

from agent.model.assessment import KUBENET
from agent.model.runtime import CONTAINERD, CRI_O, DOCKER
from agent.model.snapshot import PluginProcess, ProcessStartTimes
from agent.model.text import truncate
from agent.sources.host.kubelet_runtime import flag, named_runtime
from agent.sources.os_error import cannot_read
from agent.sources.source_error import SourceError

_KUBELET = frozenset({"kubelet", "k3s-server", "k3s-agent", "kubelite"})
_DOCKER = frozenset({"dockerd", "dockerd-current"})
_CONTAINERD = frozenset({"containerd"})
_CRIO = frozenset({"crio"})
_RUNTIMES = {DOCKER: _DOCKER, CONTAINERD: _CONTAINERD, CRI_O: _CRIO}
"""The processes of each runtime. k3s, RKE2, k0s and MicroK8s start a containerd of their own."""
_ANY_RUNTIME = frozenset[str]().union(*_RUNTIMES.values())
_CRI_DOCKERD = frozenset({"cri-dockerd"})
_PLUGINS = frozenset(
    {
        "bandwidth", "bridge", "calico", "firewall", "flannel", "host-device", "host-local", "ipvlan", "loopback",
        "macvlan", "multus", "multus-shim", "portmap", "ptp", "sbr", "tuning", "vlan", "vrf",
    }
)  # fmt: skip
"""CNI plugins that work with host-local. Those that the node's configuration names come beside them."""
_INTERPRETER = re.compile(r"(python|perl|ruby|node|bash|dash|sh|env|busybox)[\d.]*")
_PLUGIN_DIRECTORY = re.compile(r"/cni/bin\Z|\A/usr/lib(exec)?/cni\Z")
"""Those of the CNI plugins' documentation and of the distributions."""
_COMMAND_LENGTH = 15
"""The kernel cuts the name of a process (TASK_COMM_LEN)."""
_HYPERKUBE = "hyperkube"
"""One program for every component, which its first argument selects."""
_NODE = _KUBELET | _CRI_DOCKERD | _ANY_RUNTIME
_PLUGGED = _KUBELET | _CRI_DOCKERD
MAX_COMMAND_LINE_BYTES: Final = 2 * 1024 * 1024
"""What the kernel allows by default. A process may name any part of its memory as its command line."""
MOST_WORDS: Final = 4096
"""Of a command line. Any process can call itself kubelet, and fill its command line with empty words."""
_MOST_VAIN = 40
"""Searches, ten minutes of syncs: a daemon that restarts is back by then, and one that was removed costs no more."""
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
        self._kinds: frozenset[str] = frozenset()
        """The commands that are looked for: of all that were found, until they are given up."""
        self._vain = 0
        """How often in a row one of them was looked for and not found."""

    def read(self, *, complete: bool = True, plugins: Collection[str] = ()) -> ProcessStartTimes:
        """Return when each process started; raises SourceError if the table cannot be read or is not the node's.

        A table with neither a kubelet nor a container runtime is that of a container. `complete`: search all processes,
        also if those that are remembered still run, and for CNI plugins. `plugins`: further names of these.
        """
        at_work: tuple[_Process, ...] = ()
        try:
            booted = _boot_time((self._proc / "stat").read_text())
            boot_id = (self._proc / "sys/kernel/random/boot_id").read_text().strip()
            if complete or not self._unchanged():
                at_work = self._search(_PLUGINS.union(plugins))
        except OSError as error:
            raise SourceError(cannot_read(error.filename, error)) from error
        except (ValueError, IndexError, OverflowError) as error:
            raise SourceError(f"cannot parse {self._proc}: {truncate(error)}") from error
        if not self._known:
            raise SourceError(
                f"no kubelet and no container runtime in {self._proc}: they are stopped, or it is not the host's (set "
                "hostPID: true, or check --proc)"
            )
        kubelet = self._start(_KUBELET, booted)
        runtimes = self._named_runtimes()
        return ProcessStartTimes(
            booted=booted,
            boot_id=boot_id,
            kubelet=kubelet,
            docker=self._start(_DOCKER, booted),
            network_plugin=self._network_plugin() if kubelet else None,
            cri_dockerd=self._start(_CRI_DOCKERD, booted),
            runtime=_first(runtimes),
            runtime_disputed=len(runtimes - {""}) > 1,
            containerd=self._start(_CONTAINERD, booted),
            crio=self._start(_CRIO, booted),
            plugins=tuple(
                PluginProcess(plugin.pid, plugin.command, self._started(plugin, booted)) for plugin in at_work
            ),
        )

    def require(self, runtime: str) -> None:
        """Raise SourceError unless a runtime runs at this moment: `docker`, `containerd` or `cri-o`."""
        if not self.runs(runtime):
            names = " or ".join(sorted(_RUNTIMES[runtime]))
            raise SourceError(f"{runtime} does not run on this node (no {names} in {self._proc}), so it was not asked")

    def runs(self, runtime: str) -> bool:
        """Tell whether a runtime runs at this moment; raises SourceError."""
        if any(one.command in _RUNTIMES[runtime] and self._runs(one) for one in self._known):
            return True
        try:
            return self.read().start_of(runtime) is not None
        except SourceError as error:
            raise SourceError(f"{runtime} was not asked, because it is unknown whether it runs: {error}") from error

    def require_any(self) -> None:
        """Raise SourceError unless any runtime runs at this moment."""
        if not any(map(self.runs, _RUNTIMES)):
            names = " or ".join(sorted(_ANY_RUNTIME))
            raise SourceError(f"no container runtime runs on this node (no {names} in {self._proc}), so none was asked")

    def named_runtime(self) -> str | None:
        """Return the runtime that the kubelet names now, as `ProcessStartTimes.runtime` has it; raises SourceError."""
        return _first(self._named_runtimes()) if self._unchanged() else self.read().runtime

    def kubelet_flags(self, *names: str) -> Mapping[str, str]:
        """Return those of these flags that the kubelet of the last reading was started with; raises SourceError.

        The rest of its command line may be confidential and is not kept.
        """
        if (kubelet := self._youngest(_KUBELET)) is None:
            raise SourceError(f"no kubelet in {self._proc}")
        words = _command_line(self._proc, kubelet.pid)
        if words is None:
            raise SourceError(f"cannot read {self._proc}/{kubelet.pid}/cmdline: the kubelet's flags are unknown")
        return {name: value for name in names if (value := flag(name, words)) is not None}

    def _unchanged(self) -> bool:
        """Return whether all remembered processes still run, and there is one of every kind that is looked for."""
        kinds = {one.command for one in self._known}
        complete = kinds == self._kinds and all(kinds & names for names in (_KUBELET, _ANY_RUNTIME))
        return complete and all(map(self._runs, self._known))

    def _runs(self, process: _Process) -> bool:
        return _process(self._proc, process.pid) == process

    def _search(self, names: Collection[str]) -> tuple[_Process, ...]:
        """Remember the processes of the node, and return the CNI plugins at work; `names`: those of all plugins."""
        every = list(_all(self._proc))
        nodes = [one for one in every if one.command in _NODE]
        plugins = [plugin for one in every if (plugin := _plugin(self._proc, one, names))]
        # A pod may have its own `bridge`.
        self._remember(tuple(one for one in nodes if not _nested(self._proc, one.pid)))
        return tuple(sorted((one for one in plugins if not _nested(self._proc, one.pid)), key=lambda one: one.pid))

    def _remember(self, found: tuple[_Process, ...]) -> None:
        self._known, kinds = found, frozenset(process.command for process in found)
        self._vain = 0 if kinds >= self._kinds else self._vain + 1
        self._kinds = kinds if self._vain > _MOST_VAIN else kinds | self._kinds

    def _network_plugin(self) -> str | None:
        """Read it from the command lines: no file has it. Since 1.24 it is a flag of cri-dockerd.

        Of several, kubenet counts: the directory of a kubenet in use must not look unused.
        """
        # One command line at a time: each may have 2 MiB.
        lines = (_command_line(self._proc, one.pid) for one in self._known if one.command in _PLUGGED)
        plugins = {None if words is None else flag("network-plugin", words) or "" for words in lines}
        if KUBENET in plugins:
            return KUBENET
        return None if None in plugins else max(filter(None, plugins), default="")

    def _named_runtimes(self) -> set[str]:
        kubelets = ((one.pid, _command_line(self._proc, one.pid)) for one in self._known if one.command in _KUBELET)
        return {named_runtime(words, self._proc / f"{pid}/root") for pid, words in kubelets if words is not None}

    def _start(self, names: frozenset[str], booted: datetime) -> datetime | None:
        found = self._youngest(names)
        return self._started(found, booted) if found else None

    def _started(self, process: _Process, booted: datetime) -> datetime:
        try:
            return booted + timedelta(seconds=process.start / os.sysconf("SC_CLK_TCK"))
        except OverflowError as error:
            where = f"{self._proc}/{process.pid}/stat"
            raise SourceError(f"cannot parse {where}: started {truncate(process.start)} ticks after boot") from error

    def _youngest(self, names: frozenset[str]) -> _Process | None:
        return max((one for one in self._known if one.command in names), key=lambda one: one.start, default=None)


def _first(runtimes: Collection[str]) -> str | None:
    return min(runtimes, key=lambda name: (name == "", name == DOCKER, name), default=None)


def _command_line(proc: Path, pid: int) -> list[str] | None:
    """Return the arguments of a process; None: they cannot be read, or it is ending."""
    try:
        with _open(proc, pid, "cmdline") as opened:
            text = opened.read(MAX_COMMAND_LINE_BYTES + 1)
    except OSError:
        return None
    if not 0 < len(text) <= MAX_COMMAND_LINE_BYTES or text.count(b"\0") > MOST_WORDS:
        return None
    return text.decode(errors="replace").split("\0")


def _plugin(proc: Path, process: _Process, names: Collection[str]) -> _Process | None:
    """Return the process by the plugin's name if it may be one that libcni runs; None: it is not.

    It is told by its path, without arguments; that of a script comes after its interpreter. The configuration may have
    changed since it began, so whatever is in a directory of CNI plugins is one.
    """
    named = process.command in {name[:_COMMAND_LENGTH] for name in names}
    if (words := _command_line(proc, process.pid)) is None:
        return process if named else None
    directory, _, name = words[-2:][0].rpartition("/")
    known = named and name[:_COMMAND_LENGTH] == process.command
    script = name in names and _INTERPRETER.fullmatch(process.command)
    if directory.startswith("/") and (known or script or _PLUGIN_DIRECTORY.search(directory)):
        return replace(process, command=name)
    return None


def _text(proc: Path, pid: int, name: str) -> str:
    with _open(proc, pid, name) as opened:
        return opened.read().decode(errors="backslashreplace")


def _open(proc: Path, pid: int, name: str) -> BinaryIO:
    # A Path interns its parts. The table of interned strings would grow once by 1 MiB, because pids are new ones.
    return open(f"{proc}/{pid}/{name}", "rb")  # noqa: PTH123


def _boot_time(text: str) -> datetime:
    for line in text.splitlines():
        if line.startswith("btime "):
            return datetime.fromtimestamp(int(line.split()[1]), UTC)
    raise ValueError("stat has no btime")


def _nested(proc: Path, pid: int) -> bool:
    """Whether a process has a PID namespace of its own: docker in docker is not the node's."""
    try:
        status = _text(proc, pid, "status")
    except OSError:
        return False
    namespaces = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [])
    return len(namespaces) > 1


def _all(proc: Path) -> Iterator[_Process]:
    pids = [int(name) for name in os.listdir(proc) if name.isdecimal()]
    return filter(None, (_process(proc, pid) for pid in pids))


def _process(proc: Path, pid: int) -> _Process | None:
    """Return one process; None: it has ended."""
    try:
        text = _text(proc, pid, "stat")
        # The command may hold any character, parentheses too.
        before, _, after = text.rpartition(")")
        state, *rest = after.split()
        # A zombie would hide its successor, and with it a restart of the kubelet.
        return None if state in _ENDED else _Process(pid, _kind(proc, pid, before), int(rest[_START]))
    except (OSError, ValueError, IndexError):
        return None


def _kind(proc: Path, pid: int, before: str) -> str:
    command = before.partition("(")[2]
    if command == _HYPERKUBE and "kubelet" in (_command_line(proc, pid) or ())[1:2]:
        return "kubelet"
    return command
