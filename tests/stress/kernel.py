"""Who has which pod address, from the kernel alone: network namespaces, their processes, and the processes' mounts.

A pod's process has the runtime's resolv.conf of its sandbox and the kubelet's etc-hosts of its pod among its mounts.
"""

import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_LOCAL: Final = re.compile(r"\|-- (\S+)\n\s+/32 host LOCAL")
_SANDBOX: Final = re.compile(r"/([0-9a-f]{64})/(?:userdata/)?(?:resolv\.conf|hostname) ")
_POD: Final = re.compile(r"/pods/([0-9a-f-]{36})/etc-hosts ")
_UNSTARTED: Final = "runc:[2:INIT]\n"
_INET: Final = re.compile(r"inet ([0-9.]+)/")


@dataclass(frozen=True, slots=True)
class Namespace:
    """A network namespace with a pod address."""

    name: str
    ips: frozenset[str]
    sandbox: str  # Of its processes; empty if it has none, or only some that are being started
    pod: str  # The UID; empty while only the pause container runs


class Kernel:
    """The network namespaces of a node, seen from outside. `first`: its first process. `state`: its NODE_STATE."""

    def __init__(self, first: int, pod_cidr: str, state: str) -> None:
        self._state = state
        self._first, self._network = first, ip_network(pod_cidr)
        self._own = {_namespace(str(first)), _namespace("self")}

    def namespaces(self) -> list[Namespace]:
        """Return those with a pod address, but the node's own: of live processes, and those that only have a name."""
        processes = defaultdict(list)
        for entry in _PROC.iterdir():
            if entry.name.isdigit() and (name := _namespace(entry.name)) not in self._own:
                processes[name].append(entry)
        del processes[""]
        found = [self._described(name, members) for name, members in processes.items()]
        found += [self._named(path) for path, name in self._pinned() if name not in processes]
        return [namespace for namespace in found if namespace.ips]

    def running(self, programs: Iterable[str]) -> list[int]:
        """Return the processes of the node itself with one of these names."""
        pids = (_PROC / str(self._first) / "ns/pid").readlink()
        return [
            int(entry.name) for entry in _PROC.iterdir() if _is_program(entry, pids, set(programs))
        ]

    def unstarted(self) -> set[int]:
        """Return the processes of containers that were made and not started."""
        return {int(entry.name) for entry in _PROC.iterdir() if self._is_unstarted(entry)}

    @staticmethod
    def control_groups(pid: int) -> list[Path]:
        """Return the directories of a process's cgroups; none if it has ended."""
        with suppress(OSError):
            lines = [
                line.split(":", 2)
                for line in (_PROC / str(pid) / "cgroup").read_text().splitlines()
            ]
            return [
                Path("/sys/fs/cgroup", name.removeprefix("name="), path[1:])
                for _, name, path in lines
            ]
        return []

    def _is_unstarted(self, process: Path) -> bool:
        with suppress(OSError):
            mounts = (
                (process / "mountinfo") if (process / "comm").read_text() == _UNSTARTED else None
            )
            return mounts is not None and f"{self._state}/lib/kubelet/pods/" in mounts.read_text()
        return False

    def _described(self, name: str, processes: Iterable[Path]) -> Namespace:
        ips: frozenset[str] = frozenset()
        mounts = ""
        for process in processes:
            with suppress(OSError):  # it ended
                ips = ips or self._of_pods(_LOCAL.findall((process / "net/fib_trie").read_text()))
                mounts += (process / "mountinfo").read_text() if ips else ""
        return Namespace(name, ips, _first(_SANDBOX, mounts), _first(_POD, mounts))

    def _named(self, path: Path) -> Namespace:
        command = ("/usr/bin/nsenter", f"--net={path}", "ip", "-4", "-o", "address")
        shown = subprocess.run(command, capture_output=True, text=True, check=False)
        return Namespace(path.name, self._of_pods(_INET.findall(shown.stdout)), "", "")

    def _of_pods(self, ips: Iterable[str]) -> frozenset[str]:
        return frozenset(ip for ip in ips if ip_address(ip) in self._network)

    def _pinned(self) -> Iterator[tuple[Path, str]]:
        """Find the bind mounts of namespaces, each with the name of its namespace."""
        for path in Path(f"/proc/{self._first}/root/run/netns").glob("*"):
            with suppress(OSError):  # it ended
                found = path.stat()
                if found.st_dev != path.parent.stat().st_dev:
                    yield path, f"net:[{found.st_ino}]"


def _namespace(process: str) -> str:
    """Return its network namespace; empty for a process that has ended."""
    with suppress(OSError):
        return str((_PROC / process / "ns/net").readlink())
    return ""


def _is_program(process: Path, pids: Path, programs: set[str]) -> bool:
    with suppress(OSError):
        return (
            process.name.isdigit()
            and (process / "comm").read_text().strip() in programs
            and (process / "ns/pid").readlink() == pids
        )
    return False


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[1] if found else ""
