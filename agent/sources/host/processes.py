"""The node's process table: when the kubelet and the runtimes started, and which CNI plugins run.

Read-only.
"""

import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

from agent.model.assessment import KUBENET
from agent.model.remedy import Remedy
from agent.model.runtime import CONTAINERD, CRI_O, DOCKER
from agent.model.snapshot import PluginProcess, ProcessStartTimes, Snapshot
from agent.model.text import truncate
from agent.sources.host.files import read_file
from agent.sources.host.kubelet_config import flag, named_runtime
from agent.sources.source import Source, unowned_ids
from agent.sources.source_error import SourceError, read_error

_KUBELET: Final = frozenset({"kubelet", "k3s-server", "k3s-agent", "kubelite"})
_CRI_DOCKERD: Final = frozenset({"cri-dockerd"})
RUNTIMES: Final[Mapping[str, frozenset[str]]] = {
    DOCKER: frozenset({"dockerd", "dockerd-current"}),
    CONTAINERD: frozenset({"containerd"}),
    CRI_O: frozenset({"crio"}),
}
"""The processes of each runtime. k3s, RKE2, k0s and MicroK8s start a containerd of their own."""
_ANY_RUNTIME: Final = frozenset[str]().union(*RUNTIMES.values())
_NODE: Final = _KUBELET | _CRI_DOCKERD | _ANY_RUNTIME

_PLUGINS: Final = frozenset(
    {
        "bandwidth", "bridge", "calico", "firewall", "flannel", "host-device", "host-local",
        "ipvlan", "loopback", "macvlan", "multus", "multus-shim", "portmap", "ptp", "sbr", "tuning",
        "vlan", "vrf",
    }
)  # fmt: skip
"""CNI plugins that work with host-local. The node's configuration may name others."""
_INTERPRETER: Final = re.compile(r"(python|perl|ruby|node|bash|dash|sh|env|busybox)[\d.]*")
"""The commands that a plugin's script may be run by."""
_PLUGIN_DIRECTORY: Final = re.compile(r"/cni/bin\Z|\A/usr/lib(exec)?/cni\Z")
"""Those of the CNI plugins' documentation and of the distributions."""
_SEARCH_INTERVAL: Final = timedelta(minutes=1)
"""The search for plugins reads all command lines."""

_BOOTED: Final = re.compile(r"^btime (\d+)$", re.MULTILINE)
_COMMAND_LENGTH: Final = 15  # the kernel cuts the name of a process (TASK_COMM_LEN - 1)
# `/proc/<pid>/stat` (proc_pid_stat(5)): fields 4 and 22, from 0 after the state.
_PARENT: Final = 0
_START: Final = 18
_ENDED: Final = frozenset({"Z", "X"})  # states: zombie, dead


class _Process(NamedTuple):
    """A process is the same as long as all of this is."""

    pid: int
    command: str
    """Its name, which the kernel has cut; of a plugin, the plugin's name."""
    start: int
    """Clock ticks after boot."""
    parent: int

    @property
    def after_boot(self) -> timedelta:
        """How long after the boot it started; raises OverflowError."""
        return timedelta(seconds=self.start / os.sysconf("SC_CLK_TCK"))


@dataclass
class ProcessTable:
    """The node's process table.

    It remembers the node's own processes, because searching all of them is expensive.
    """

    proc: Path
    _node: tuple[_Process, ...] = ()
    """Every kubelet, cri-dockerd and runtime of the last search that found any.

    One value, because threads share it.
    """
    _plugins: tuple[_Process, ...] = ()
    """Those that ran at the last search for them."""
    _searched_at: timedelta = timedelta(0)
    """When they were searched for, by the boot clock."""

    def read(
        self,
        uptime: timedelta = timedelta(0),
        plugins: Collection[str] = (),
        *,
        complete: bool = True,
    ) -> ProcessStartTimes:
        """Return when each process started; raises SourceError if this is not the node's table.

        `plugins`: types of CNI plugins to look for, beside the usual ones. `complete`: search all
        processes for them even if the last search is less than a minute ago.
        """
        booted, boot_id = _boot(self.proc)
        is_due = uptime - self._searched_at >= _SEARCH_INTERVAL
        if complete or self._plugins or is_due or not self._is_unchanged():
            self._plugins = self._search(_PLUGINS.union(plugins))
            self._searched_at = max(uptime, self._searched_at)

        runtimes = self._named_runtimes()
        running_plugins = [
            PluginProcess(plugin.pid, plugin.command, _started(plugin, booted), plugin.parent)
            for plugin in self._plugins
        ]
        return ProcessStartTimes(
            booted=booted,
            boot_id=boot_id,
            kubelet=self._start(_KUBELET, booted),
            docker=self._start(RUNTIMES[DOCKER], booted),
            network_plugin=self._network_plugin(),
            cri_dockerd=self._start(_CRI_DOCKERD, booted),
            runtime=_preferred(runtimes),
            runtime_disputed=len(runtimes - {""}) > 1,
            containerd=self._start(RUNTIMES[CONTAINERD], booted),
            crio=self._start(RUNTIMES[CRI_O], booted),
            plugins=tuple(running_plugins),
        )

    def running(self, runtimes: Collection[str]) -> frozenset[str]:
        """Return those of these runtimes that run at this moment: `docker`, `containerd`, `cri-o`.

        It searches at most once. Raises SourceError.
        """
        running = self._still_running()
        if not running.issuperset(runtimes):
            try:
                self._search()
            except SourceError as error:
                names = " or ".join(sorted(runtimes))
                text = f"{names} was not asked, because it is unknown whether it runs: {error}"
                raise SourceError(text, error.remedy) from error
            running = self._still_running()
        return running.intersection(runtimes)

    def require(self, *runtimes: str) -> None:
        """Raise SourceError unless one of these runtimes runs at this moment."""
        if self._still_running().intersection(runtimes) or self.running(runtimes):
            return

        commands = sorted(command for runtime in runtimes for command in RUNTIMES[runtime])
        where = f"on this node (no {' or '.join(commands)} in {self.proc})"
        if len(runtimes) == 1:
            raise SourceError(f"{runtimes[0]} does not run {where}, so it was not asked")
        raise SourceError(f"no container runtime runs {where}, so none was asked")

    def runtime_processes(self) -> tuple[int, ...]:
        """Return the process IDs of all runtimes, after a search; raises SourceError."""
        self._search()
        return tuple(process.pid for process in self._node if process.command in _ANY_RUNTIME)

    def named_runtime(self) -> str | None:
        """Return the runtime that the kubelet names now; raises SourceError.

        As in `ProcessStartTimes.runtime`.
        """
        if not self._is_unchanged():
            self._search()
        return _preferred(self._named_runtimes())

    def kubelet_flags(self, *names: str) -> Mapping[str, str]:
        """Return those of these flags that the kubelet was started with; raises SourceError.

        It is the kubelet of the last reading. What else its command line has may be confidential,
        and is not kept.
        """
        kubelets = self._processes(_KUBELET)
        words = _command_line(self.proc, kubelets[-1].pid) if kubelets else None
        if words is None:
            reason = f"{self.proc} has no kubelet, or not its command line"
            raise SourceError(f"the kubelet's flags are unknown: {reason}")

        return {name: value for name in names if (value := flag(name, words)) is not None}

    def network_flag(self, name: str) -> str:
        """Return a flag of cri-dockerd, or of a kubelet < 1.24; empty: not set.

        Raises SourceError if they differ.
        """
        values = sorted(filter(None, self._network_flags(name)))
        if len(values) > 1:
            listed = ", ".join(values)
            raise SourceError(f"--{name} of the kubelet and cri-dockerd differ: {listed}")
        return "".join(values)

    def _still_running(self) -> frozenset[str]:
        """Return the runtimes of the last search that run at this moment."""
        commands = {process.command for process in self._node if self._runs(process)}
        return frozenset(name for name, programs in RUNTIMES.items() if programs & commands)

    def _is_unchanged(self) -> bool:
        """Return whether the last search found a kubelet and a runtime, and all it found still run.

        A runtime that starts beside them is found when something asks whether it runs.
        """
        commands = {process.command for process in self._node}
        has_both = bool(commands & _KUBELET) and bool(commands & _ANY_RUNTIME)
        return has_both and all(map(self._runs, self._node))

    def _runs(self, process: _Process) -> bool:
        """Return whether it still runs, and no other process has its ID."""
        return _process(self.proc, process.pid) == process

    def _search(self, plugins: Collection[str] = ()) -> tuple[_Process, ...]:
        """Remember the node's own processes, and return those of these CNI plugins.

        Raises SourceError if there is no process of the node.
        """
        node = []
        candidates = []
        for pid in process_ids(self.proc):
            process = _process(self.proc, pid)
            if process is None:
                continue
            if process.command in _NODE and not _is_nested(self.proc, pid):
                node.append(process)
            if plugins and (plugin := _plugin(self.proc, process, plugins)):
                candidates.append(plugin)

        if not node:
            missing = f"no kubelet and no container runtime in {self.proc}"
            remedy = Remedy("set hostPID: true, or check --proc")
            reason = f"they are stopped, or it is not the host's ({remedy})"
            raise SourceError(f"{missing}: {reason}", remedy)
        self._node = tuple(node)

        # A pod may have its own `bridge`.
        of_node = [plugin for plugin in candidates if not _is_nested(self.proc, plugin.pid)]
        return tuple(sorted(of_node))

    def _network_plugin(self) -> str | None:
        """Return `--network-plugin`; None: unknown. As in `ProcessStartTimes`."""
        if not self._processes(_KUBELET):
            return None

        plugins = self._network_flags("network-plugin")
        # Of several, kubenet counts: the directory of a kubenet in use must not look unused.
        if KUBENET in plugins:
            return KUBENET
        return None if None in plugins else max(filter(None, plugins), default="")

    def _network_flags(self, name: str) -> set[str | None]:
        """Return the values of a flag of kubelets and cri-dockerds, which no file has.

        None: a command line that cannot be read. Empty: not set.
        """
        values = set()
        for process in self._processes(_KUBELET | _CRI_DOCKERD):
            words = _command_line(self.proc, process.pid)
            values.add(None if words is None else flag(name, words) or "")
        return values

    def _named_runtimes(self) -> set[str]:
        """Return what each kubelet names, if its command line can be read."""
        runtimes = set()
        for process in self._processes(_KUBELET):
            words = _command_line(self.proc, process.pid)
            if words is not None:
                runtimes.add(named_runtime(words, self.proc / f"{process.pid}"))
        return runtimes

    def _processes(self, programs: frozenset[str]) -> list[_Process]:
        """Return the node's processes of these programs, the youngest last.

        An older one must not hide a restart.
        """
        processes = (process for process in self._node if process.command in programs)
        return sorted(processes, key=lambda process: process.start)

    def _start(self, programs: frozenset[str], booted: datetime) -> datetime | None:
        """Return when the youngest process of these programs started; None: there is none."""
        processes = self._processes(programs)
        return _started(processes[-1], booted) if processes else None


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


def _preferred(runtimes: Collection[str]) -> str | None:
    """Return another runtime than docker, then docker, then none (empty); None: no kubelet runs."""
    return min(runtimes, key=lambda name: (name == "", name == DOCKER, name), default=None)


def _boot(proc: Path) -> tuple[datetime, str]:
    """Return when the node booted, and the ID of that boot; raises SourceError."""
    try:
        (booted,) = _BOOTED.findall((proc / "stat").read_text())
        boot_id = (proc / "sys/kernel/random/boot_id").read_text().strip()
        return datetime.fromtimestamp(int(booted), UTC), boot_id
    except OSError as error:
        raise read_error(error.filename, error) from error
    except (ValueError, OverflowError) as error:
        raise SourceError(f"cannot parse {proc}/stat: it has no time of the boot") from error


def _started(process: _Process, booted: datetime) -> datetime:
    """Return when a process started; raises SourceError for a time that the calendar lacks."""
    try:
        return booted + process.after_boot
    except OverflowError as error:
        start = f"{truncate(process.start)} ticks after boot"
        raise SourceError(f"process {process.pid} started {start}") from error


def process_ids(proc: Path) -> list[int]:
    """Return the IDs of all processes; raises SourceError."""
    try:
        return sorted(int(name) for name in os.listdir(proc) if name.isdecimal())
    except OSError as error:
        raise read_error(proc, error) from error


def started_after_boot(proc: Path, pid: int) -> timedelta | None:
    """Return how long after the boot a process started; None: it has ended, or that is unknown."""
    process = _process(proc, pid)
    try:
        return process.after_boot if process else None
    except OverflowError:
        return None


def _process(proc: Path, pid: int) -> _Process | None:
    """Return a process; None: it has ended."""
    try:
        # The command may have any character, parentheses too.
        before, _, after = read_process_file(proc, pid, "stat").rpartition(")")
        state, *fields = after.split()
        if state in _ENDED:  # a zombie would hide its successor, and a restart of the kubelet
            return None

        command = before.partition("(")[2]
        return _Process(pid, command, int(fields[_START]), int(fields[_PARENT]))
    except (ValueError, IndexError):
        return None


def _plugin(proc: Path, process: _Process, names: Collection[str]) -> _Process | None:
    """Return the process by the plugin's name if libcni may have started it; None: it is no plugin.

    libcni starts a plugin by its path, without arguments; that of a script follows its interpreter.
    The configuration may have changed since it began, so whatever is in a directory of CNI plugins
    is a plugin.
    """
    may_be_named = any(name[:_COMMAND_LENGTH] == process.command for name in names)
    words = _command_line(proc, process.pid)
    if words is None:
        return process if may_be_named else None

    # A program alone, or after its interpreter.
    directory, _, program = words[-2:][0].rpartition("/")
    is_named = may_be_named and program[:_COMMAND_LENGTH] == process.command
    is_script = program in names and _INTERPRETER.fullmatch(process.command)
    is_plugin = is_named or is_script or _PLUGIN_DIRECTORY.search(directory)
    if directory.startswith("/") and is_plugin:
        return process._replace(command=program)
    return None


def _is_nested(proc: Path, pid: int) -> bool:
    """Return whether a process has its own PID namespace: docker in docker is not the node's."""
    for line in read_process_file(proc, pid, "status").splitlines():
        if line.startswith("NSpid:"):
            return len(line.split()) > 2  # noqa: PLR2004 (the key, and its ID in each namespace)
    return False


def _command_line(proc: Path, pid: int) -> list[str] | None:
    """Return the arguments of a process; None: they cannot be read, or it is ending."""
    text = read_process_file(proc, pid, "cmdline")
    return text.split("\0") if text else None


def read_process_file(proc: Path, pid: int, name: str) -> str:
    """Return a file of a process; empty: it cannot be read, or the process has ended."""
    # A Path interns its parts. The table of interned strings would grow once by 1 MiB, because pids
    # are new ones.
    try:
        content, _ = read_file(f"{proc}/{pid}/{name}")
    except (OSError, SourceError):
        return ""
    return content.decode(errors="backslashreplace")
