"""When the node, the kubelet and the runtime started, with which flags, and which CNI plugins run. Read-only."""

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

from agent.model.assessment import KUBENET
from agent.model.runtime import CONTAINERD, CRI_O, DOCKER
from agent.model.snapshot import PluginProcess, ProcessStartTimes, Snapshot
from agent.model.text import truncate
from agent.sources.host.files import read_file
from agent.sources.host.kubelet_config import flag, named_runtime
from agent.sources.source import Source, unowned_ids
from agent.sources.source_error import SourceError, cannot_read

_KUBELET: Final = frozenset({"kubelet", "k3s-server", "k3s-agent", "kubelite"})
_CRI_DOCKERD: Final = frozenset({"cri-dockerd"})
_RUNTIMES: Final[Mapping[str, frozenset[str]]] = {
    DOCKER: frozenset({"dockerd", "dockerd-current"}),
    CONTAINERD: frozenset({"containerd"}),
    CRI_O: frozenset({"crio"}),
}
"""The processes of each runtime. k3s, RKE2, k0s and MicroK8s start a containerd of their own."""
_ANY_RUNTIME: Final = frozenset[str]().union(*_RUNTIMES.values())
_NODE: Final = _KUBELET | _CRI_DOCKERD | _ANY_RUNTIME
_PLUGINS: Final = frozenset(
    {
        "bandwidth", "bridge", "calico", "firewall", "flannel", "host-device", "host-local", "ipvlan", "loopback",
        "macvlan", "multus", "multus-shim", "portmap", "ptp", "sbr", "tuning", "vlan", "vrf",
    }
)  # fmt: skip
"""CNI plugins that work with host-local. Those that the node's configuration names come beside them."""
_INTERPRETER: Final = re.compile(r"(python|perl|ruby|node|bash|dash|sh|env|busybox)[\d.]*")
_PLUGIN_DIRECTORY: Final = re.compile(r"/cni/bin\Z|\A/usr/lib(exec)?/cni\Z")
"""Those of the CNI plugins' documentation and of the distributions."""
_COMMAND_LENGTH: Final = 15  # the kernel cuts the name of a process (TASK_COMM_LEN)
_BOOTED: Final = re.compile(r"^btime (\d+)$", re.MULTILINE)
_ENDED: Final = frozenset({"Z", "X"})
_SEARCH_EVERY: Final = timedelta(minutes=1)  # the search for CNI plugins reads all command lines
_START: Final = 18  # field 22 of `/proc/<pid>/stat` (proc_pid_stat(5)), from 0 after the state


class _Process(NamedTuple):
    pid: int
    command: str
    start: int  # clock ticks after boot


@dataclass
class ProcessTable:
    """The node's process table. It remembers the node's own processes, because searching all of them is expensive."""

    proc: Path
    _known: tuple[_Process, ...] = ()
    """Every kubelet, cri-dockerd and runtime of the last search that found any: one value, as threads share it."""
    _plugins: tuple[_Process, ...] = ()
    _searched: timedelta = timedelta(0)

    def read(
        self,
        uptime: timedelta = timedelta(0),
        plugins: Collection[str] = (),
        *,
        complete: bool = True,
    ) -> ProcessStartTimes:
        """Return when each process started; raises SourceError if the table cannot be read or is not the node's."""
        # `plugins`: further names of these. `complete`: search all processes for them in any case.
        booted, boot_id = _boot(self.proc)
        if (
            complete
            or self._plugins
            or uptime - self._searched >= _SEARCH_EVERY
            or not self._unchanged()
        ):
            self._plugins, self._searched = (
                self._search(_PLUGINS.union(plugins)),
                max(uptime, self._searched),
            )
        runtimes = self._named_runtimes()
        return ProcessStartTimes(
            booted=booted,
            boot_id=boot_id,
            kubelet=self._start(_KUBELET, booted),
            docker=self._start(_RUNTIMES[DOCKER], booted),
            network_plugin=self._network_plugin(),
            cri_dockerd=self._start(_CRI_DOCKERD, booted),
            runtime=_first(runtimes),
            runtime_disputed=len(runtimes - {""}) > 1,
            containerd=self._start(_RUNTIMES[CONTAINERD], booted),
            crio=self._start(_RUNTIMES[CRI_O], booted),
            plugins=tuple(
                PluginProcess(*found[:2], _started(found, booted)) for found in self._plugins
            ),
        )

    def running(self, runtimes: Collection[str]) -> Collection[str]:
        """Return those of these runtimes that run at this moment, after one search at most; raises SourceError."""
        found = self._known_to_run()
        if not found.issuperset(runtimes):
            try:
                self._search()
            except SourceError as error:
                names = " or ".join(sorted(runtimes))
                raise SourceError(
                    f"{names} was not asked, because it is unknown whether it runs: {error}"
                ) from error
            found = self._known_to_run()
        return found.intersection(runtimes)

    def runs(self, runtime: str) -> bool:
        return bool(self.running([runtime]))

    def runtimes(self) -> tuple[int, ...]:
        """Search for the processes of all runtimes; raises SourceError if this is not the node's process table."""
        self._search()
        return tuple(process.pid for process in self._known if process.command in _ANY_RUNTIME)

    def require(self, runtime: str) -> None:
        """Raise SourceError unless a runtime runs at this moment: `docker`, `containerd` or `cri-o`."""
        if not self.runs(runtime):
            names = " or ".join(sorted(_RUNTIMES[runtime]))
            raise SourceError(
                f"{runtime} does not run on this node (no {names} in {self.proc}), so it was not asked"
            )

    def require_any(self) -> None:
        """Raise SourceError unless any runtime runs at this moment."""
        if not self._known_to_run() and not self.running(_RUNTIMES):
            names = " or ".join(sorted(_ANY_RUNTIME))
            raise SourceError(
                f"no container runtime runs on this node (no {names} in {self.proc}), so none was asked"
            )

    def named_runtime(self) -> str | None:
        """Return the runtime that the kubelet names now, as `ProcessStartTimes.runtime` has it; raises SourceError."""
        if not self._unchanged():
            self._search()
        return _first(self._named_runtimes())

    def kubelet_flags(self, *names: str) -> Mapping[str, str]:
        """Return those of these flags that the kubelet of the last reading was started with; raises SourceError."""
        # The rest of its command line may be confidential and is not kept.
        kubelets = self._of(_KUBELET)
        words = _command_line(self.proc, kubelets[-1].pid) if kubelets else None
        if words is None:
            raise SourceError(
                f"the kubelet's flags are unknown: {self.proc} has no kubelet, or not its command line"
            )
        return {name: value for name in names if (value := flag(name, words)) is not None}

    def _known_to_run(self) -> set[str]:
        commands = {process.command for process in self._known if self._runs(process)}
        return {runtime for runtime, names in _RUNTIMES.items() if names & commands}

    def _unchanged(self) -> bool:
        """Return whether a kubelet and a runtime are known, and every known process still runs."""
        # A runtime that starts beside them is found when something asks whether it runs.
        found = {process.command for process in self._known}
        return (
            bool(found & _KUBELET)
            and bool(found & _ANY_RUNTIME)
            and all(map(self._runs, self._known))
        )

    def _runs(self, process: _Process) -> bool:
        return _process(self.proc, process.pid) == process

    def _search(self, plugins: Collection[str] = ()) -> tuple[_Process, ...]:
        """Remember the node's own processes, and return those of these CNI plugins; raises SourceError without any."""
        processes = [
            process for pid in process_ids(self.proc) if (process := _process(self.proc, pid))
        ]
        known = self._of_node(process for process in processes if process.command in _NODE)
        if not known:
            raise SourceError(
                f"no kubelet and no container runtime in {self.proc}: they are stopped, or it is not the host's (set "
                "hostPID: true, or check --proc)"
            )
        self._known = known
        at_work = (
            plugin
            for process in processes
            if plugins and (plugin := _plugin(self.proc, process, plugins))
        )
        return tuple(sorted(self._of_node(at_work)))  # a pod may have its own `bridge`

    def _of_node(self, processes: Iterable[_Process]) -> tuple[_Process, ...]:
        return tuple(process for process in processes if not _is_nested(self.proc, process.pid))

    def network_flag(self, name: str) -> str:
        """Return a flag of cri-dockerd, or of a kubelet < 1.24; empty: not set. Raises SourceError if they differ."""
        values = sorted(filter(None, self._network_flags(name)))
        if len(values) > 1:
            raise SourceError(
                f"--{name} of the kubelet and cri-dockerd differ: {', '.join(values)}"
            )
        return "".join(values)

    def _network_plugin(self) -> str | None:
        # Of several, kubenet counts: the directory of a kubenet in use must not look unused.
        plugins = self._network_flags("network-plugin") if self._of(_KUBELET) else {None}
        if KUBENET in plugins:
            return KUBENET
        return None if None in plugins else max(filter(None, plugins), default="")

    def _network_flags(self, name: str) -> set[str | None]:
        """Return its values in the command lines, as no file has it; None is one that cannot be read."""
        lines = (
            _command_line(self.proc, process.pid) for process in self._of(_KUBELET | _CRI_DOCKERD)
        )
        return {None if words is None else flag(name, words) or "" for words in lines}

    def _named_runtimes(self) -> set[str]:
        lines = (
            (process.pid, _command_line(self.proc, process.pid)) for process in self._of(_KUBELET)
        )
        return {
            named_runtime(words, self.proc / f"{pid}") for pid, words in lines if words is not None
        }

    def _of(self, names: frozenset[str]) -> list[_Process]:
        """Return the node's processes of these programs, the youngest last: an older one must not hide a restart."""
        found = (process for process in self._known if process.command in names)
        return sorted(found, key=lambda process: process.start)

    def _start(self, names: frozenset[str], booted: datetime) -> datetime | None:
        found = self._of(names)
        return _started(found[-1], booted) if found else None


@dataclass(frozen=True)
class ProcessesSource(Source):
    table: ProcessTable
    plugins: Callable[[], Collection[str]]
    """Returns the types of the plugins that the node's configuration names."""
    name = "processes"

    def read(self, snapshot: Snapshot) -> ProcessStartTimes:
        # The search is expensive, and its result matters where something may be released. After the
        # reservations: a plugin that has ended by now has given its address to somebody whom
        # `addresses` finds.
        complete = bool(unowned_ids(snapshot))
        return self.table.read(snapshot.uptime, self.plugins(), complete=complete)


def _first(runtimes: Collection[str]) -> str | None:
    return min(runtimes, key=lambda name: (name == "", name == DOCKER, name), default=None)


def _boot(proc: Path) -> tuple[datetime, str]:
    """Return when the node booted, and the ID of that boot; raises SourceError."""
    try:
        (booted,) = _BOOTED.findall((proc / "stat").read_text())
        boot_id = (proc / "sys/kernel/random/boot_id").read_text().strip()
        return datetime.fromtimestamp(int(booted), UTC), boot_id
    except OSError as error:
        raise SourceError(cannot_read(error.filename, error)) from error
    except (ValueError, OverflowError) as error:
        raise SourceError(f"cannot parse {proc}/stat: it has no time of the boot") from error


def _started(process: _Process, booted: datetime) -> datetime:
    try:
        return booted + timedelta(seconds=process.start / os.sysconf("SC_CLK_TCK"))
    except OverflowError as error:
        raise SourceError(
            f"process {process.pid} started {truncate(process.start)} ticks after boot"
        ) from error


def process_ids(proc: Path) -> list[int]:
    """Raises SourceError."""
    try:
        return sorted(int(name) for name in os.listdir(proc) if name.isdecimal())
    except OSError as error:
        raise SourceError(cannot_read(proc, error)) from error


def _process(proc: Path, pid: int) -> _Process | None:
    """Return a process; None: it has ended."""
    try:
        # The command may hold any character, parentheses too.
        before, _, after = read_of(proc, pid, "stat").rpartition(")")
        state, *rest = after.split()
        # A zombie would hide its successor, and with it a restart of the kubelet.
        return (
            None if state in _ENDED else _Process(pid, before.partition("(")[2], int(rest[_START]))
        )
    except (ValueError, IndexError):
        return None


def _plugin(proc: Path, process: _Process, names: Collection[str]) -> _Process | None:
    """Return the process by the plugin's name if libcni may have started it; None: it is not."""
    # It is told by its path, without arguments; that of a script comes after its interpreter. The configuration may
    # have changed since it began, so whatever is in a directory of CNI plugins is a plugin.
    named = any(name[:_COMMAND_LENGTH] == process.command for name in names)
    if (words := _command_line(proc, process.pid)) is None:
        return process if named else None
    directory, _, name = words[-2:][0].rpartition("/")
    known = named and name[:_COMMAND_LENGTH] == process.command
    script = name in names and _INTERPRETER.fullmatch(process.command)
    if directory.startswith("/") and (known or script or _PLUGIN_DIRECTORY.search(directory)):
        return process._replace(command=name)
    return None


def _is_nested(proc: Path, pid: int) -> bool:
    """Whether a process has a PID namespace of its own: docker in docker is not the node's."""
    lines = read_of(proc, pid, "status").splitlines()
    return len(next((line.split()[1:] for line in lines if line.startswith("NSpid:")), [])) > 1


def _command_line(proc: Path, pid: int) -> list[str] | None:
    """Return the arguments of a process; None: they cannot be read, or it is ending."""
    text = read_of(proc, pid, "cmdline")
    return text.split("\0") if text else None


def read_of(proc: Path, pid: int, name: str) -> str:
    """Return a file of a process; empty: it cannot be read, or the process has ended."""
    try:
        # A Path interns its parts. The table of interned strings would grow once by 1 MiB, because pids are new ones.
        content, _ = read_file(f"{proc}/{pid}/{name}")
    except (OSError, SourceError):
        return ""
    return content.decode(errors="backslashreplace")
