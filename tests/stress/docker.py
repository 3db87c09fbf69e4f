"""The real docker and the real host-local, with a store of their own: containers that are created and never started.

A kubelet of this file takes sandboxes through their lifecycle; some leak, some are left by a killed worker to the
garbage collector. libcni is a library and no command, so its result cache is written here (`cniCacheV1`, since 0.8).
"""

import base64
import json
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import Enum, auto
from ipaddress import IPv4Network
from pathlib import Path
from threading import Lock
from typing import Any, Final

import docker
from docker.errors import APIError, DockerException, NotFound
from requests.exceptions import RequestException

from tests import processes
from tests.stress import cleaners
from tests.stress.checker import Action
from tests.stress.cleaners import Daemon, Loop
from tests.stress.ledger import Ledger, Store
from tests.stress.run import Context

HOST: Final = "unix:///var/run/docker.sock"  # The engine of hack/cluster
BROKEN: Final = (DockerException, RequestException)  # The exceptions of a failing docker
_IMAGE: Final = "nodeleak/busybox:1"
_LABEL: Final = "nodeleak-stress"
_NETWORK, _IFNAME = "kubenet", "eth0"
_HOST_LOCAL: Final = Path("/usr/lib/cni/host-local")
_EXHAUSTED: Final = "no IP addresses available in range set"
_TIMEOUT: Final = 60  # Seconds for one call; the kubelet waits minutes
_SUBNET, _FIRST = IPv4Network("10.254.77.0/24"), 10
_CHECKPOINTS: Final = ("/var/lib/dockershim/sandbox", "/var/lib/cri-dockerd/sandbox")
"""The machine's own checkpoint directories, read beside the empty one: they belong to real pods that may run here."""
_LONGEST_HOLD, _LATEST_REMOVAL = 0.5, 5.0
_BETWEEN_READS, _BEFORE_RETRY = (0.01, 0.06), (0.02, 0.2)


class PluginError(Exception):
    """host-local failed for a reason other than a full range."""


class Directories:
    """The directories of one run, and the environment that points cleaners to them."""

    def __init__(self, root: Path) -> None:
        self.networks, self.cache, self.state = (
            root / "networks",
            root / "cache/results",
            root / "state",
        )
        self.store, self.checkpoints, self.logs = (
            self.networks / _NETWORK,
            root / "checkpoints",
            root / "logs",
        )
        for directory in (self.store, self.cache, self.checkpoints, self.state, self.logs):
            directory.mkdir(parents=True)

    def environment(self) -> Mapping[str, str]:
        return processes.environment(
            DOCKER_HOST=HOST,
            STRESS_NETWORKS=str(self.networks),
            STRESS_STORE=str(self.store),
            STRESS_CACHE=str(self.cache),
            STRESS_STATE=str(self.state),
            NODELEAK_API="off",
            NODELEAK_DOCKER_HOST=HOST,
            NODELEAK_CNI_NETWORKS_DIR=str(self.networks),
            NODELEAK_CNI_CACHE_DIR=str(self.cache),
            NODELEAK_CHECKPOINT_DIR=",".join([str(self.checkpoints), *_CHECKPOINTS]),
            NODELEAK_STATE_DIR=str(self.state),
        )


@dataclass(frozen=True, slots=True)
class Added:
    ip: str
    result: Any
    seconds: float  # Runtime of the process


class HostLocal:
    """The plugin with one configuration. Thread-safe."""

    def __init__(self, directory: Path, networks: Path, addresses: Sequence[str]) -> None:
        span = {"subnet": str(_SUBNET), "rangeStart": addresses[0], "rangeEnd": addresses[-1]}
        ipam = {"type": "host-local", "ranges": [[span]], "dataDir": str(networks)}
        self.netconf = {"cniVersion": "0.3.1", "name": _NETWORK, "type": "bridge", "ipam": ipam}
        self._configuration = directory / "netconf.json"
        self._configuration.write_text(json.dumps(self.netconf))

    def add(self, sandbox: str) -> Added | None:
        """Reserve an address; None if none is free. Raises PluginError."""
        begun = time.perf_counter()
        code, output = self._call("ADD", sandbox)
        seconds = time.perf_counter() - begun
        if code == 0:
            result = json.loads(output)
            return Added(result["ips"][0]["address"].partition("/")[0], result, seconds)
        if _EXHAUSTED in output:
            return None
        raise PluginError(f"ADD for {sandbox[:12]}: {code} {output}")

    def add_killed(self, sandbox: str, moment: float) -> None:
        """Start an ADD and kill it after `moment` seconds; the result is unknown."""
        self._call("ADD", sandbox, moment)

    def delete(self, sandbox: str) -> None:
        """Release the addresses of a sandbox; raises PluginError."""
        code, output = self._call("DEL", sandbox)
        if code != 0:
            raise PluginError(f"DEL for {sandbox[:12]}: {code} {output}")

    def _call(self, verb: str, sandbox: str, killed_after: float | None = None) -> tuple[int, str]:
        named = {"CNI_COMMAND": verb, "CNI_CONTAINERID": sandbox, "CNI_IFNAME": _IFNAME}
        paths = {
            "CNI_NETNS": "/proc/self/ns/net",
            "CNI_NETNS_OVERRIDE": "1",
            "CNI_PATH": str(_HOST_LOCAL.parent),
        }
        with self._configuration.open() as configuration:
            process = subprocess.Popen(
                [_HOST_LOCAL],
                stdin=configuration,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=processes.environment(**named, **paths),
                start_new_session=True,  # Ctrl-C must not reach it: a call that started finishes
            )
        if killed_after is not None:
            time.sleep(killed_after)
            process.kill()
        try:
            output, _ = process.communicate(timeout=_TIMEOUT)
        except subprocess.TimeoutExpired as error:
            process.kill()
            raise PluginError(
                f"{verb} for {sandbox[:12]} did not finish within {_TIMEOUT} s"
            ) from error
        return process.returncode, output.strip()


class Cache:
    """`cache/results`: two entries for each kubenet sandbox, one per network (kubenet and loopback)."""

    def __init__(self, directory: Path, netconf: dict[str, Any]) -> None:
        loopback = f"{_NETWORK}-loopback"
        self._directory = directory
        self._configurations = {
            (_NETWORK, _IFNAME): netconf,
            (loopback, "lo"): {"cniVersion": "0.2.0", "name": loopback, "type": "loopback"},
        }

    def write(self, sandbox: str, result: Any) -> None:
        """Write what libcni writes after a successful ADD."""
        for (network, ifname), netconf in self._configurations.items():
            entry = {
                "kind": "cniCacheV1",
                "containerId": sandbox,
                "config": base64.b64encode(json.dumps(netconf).encode()).decode(),
                "ifName": ifname,
                "networkName": network,
                "result": result if network == _NETWORK else {"cniVersion": "0.2.0", "dns": {}},
            }
            file = self._file(network, sandbox, ifname)
            file.touch(mode=0o600)
            file.write_text(json.dumps(entry))

    def forget(self, sandbox: str) -> None:
        """Remove what libcni removes after a successful DEL; the files may be missing."""
        for network, ifname in self._configurations:
            self._file(network, sandbox, ifname).unlink(missing_ok=True)

    def _file(self, network: str, sandbox: str, ifname: str) -> Path:
        return self._directory / f"{network}-{sandbox}-{ifname}"


@dataclass(frozen=True, slots=True)
class Kubelet:
    """The steps that a kubelet takes with a sandbox, each recorded in the ledger. The caller decides their order."""

    engine: docker.APIClient
    run_id: str
    host_local: HostLocal
    cache: Cache
    store: Store
    ledger: Ledger

    def for_another_thread(self) -> "Kubelet":
        return replace(self, engine=_connected())

    def create(self) -> str:
        settings = self.engine.create_host_config(network_mode="none")
        made = self.engine.create_container(
            _IMAGE, labels={_LABEL: self.run_id}, host_config=settings
        )
        sandbox = str(made["Id"])
        self.ledger.action(Action.CREATED, sandbox)
        return sandbox

    def add(self, sandbox: str) -> Added | None:
        """Reserve an address and verify its file at once; None if the range is exhausted."""
        added = self.host_local.add(sandbox)
        if added is None:
            self.ledger.action(Action.EXHAUSTED, sandbox)
            return None
        self.ledger.action(Action.ADDED, sandbox, added.ip)
        self.store.read(added.ip)
        self.cache.write(sandbox, added.result)
        return added

    def add_killed(self, sandbox: str, moment: float) -> None:
        """Kill an ADD and read what it left in the store."""
        self.host_local.add_killed(sandbox, moment)
        self.store.read(*self.store.addresses)
        self.ledger.action(Action.KILLED, sandbox)

    def read(self, sandbox: str) -> None:
        """Verify the files of the addresses that a sandbox holds."""
        self.store.read(*self.ledger.owned(sandbox))

    def delete(self, sandbox: str) -> None:
        self.read(sandbox)
        self.ledger.action(Action.DEL_CALLED, sandbox)
        self.host_local.delete(sandbox)
        self.cache.forget(sandbox)

    def remove(self, sandbox: str) -> None:
        """Remove the container; without a preceding DEL this leaks its reservations."""
        self.read(sandbox)
        self.ledger.action(Action.RM_CALLED, sandbox)
        self.engine.remove_container(sandbox, v=True)


class Lifecycle(Enum):
    """How far a sandbox gets."""

    COMPLETE = auto()
    LEAKED = auto()
    KILLED_BEFORE_ADD = auto()
    KILLED_IN_ADD = auto()
    KILLED_AFTER_ADD = auto()
    KILLED_AFTER_DEL = auto()


_KILLED: Final = tuple(lifecycle for lifecycle in Lifecycle if lifecycle.name.startswith("KILLED"))


class GarbageCollector:
    """The kubelet's: it removes sandboxes of killed workers, late, in random order, and half of them without DEL."""

    def __init__(self, kubelet: Kubelet, context: Context) -> None:
        self._kubelet, self._chance, self._state = kubelet, context.another_chance(), context.state
        self._leaked = 0.5 if context.options.leak else 0.0
        self._lock = Lock()
        self._due_at: dict[str, float] = {}

    def leave(self, sandbox: str) -> None:
        with self._lock:
            self._due_at[sandbox] = time.monotonic() + self._chance.uniform(0, _LATEST_REMOVAL)

    def work(self) -> None:
        while not self._state.stopping.wait(0.02):
            self.collect()

    def collect(self, *, all_of_them: bool = False) -> None:
        """Remove the sandboxes that are due."""
        while not self._state.over.is_set() and (sandbox := self._pick(all_of_them=all_of_them)):
            if self._chance.random() >= self._leaked:
                self._kubelet.delete(sandbox)
            self._kubelet.remove(sandbox)

    def _pick(self, *, all_of_them: bool) -> str:
        """Take one sandbox that is due; empty: none is."""
        with self._lock:
            now = time.monotonic()
            due = [
                sandbox for sandbox, due_at in self._due_at.items() if all_of_them or due_at <= now
            ]
            sandbox = self._chance.choice(due) if due else ""
            self._due_at.pop(sandbox, None)
            return sandbox


class Worker:
    """One thread of a kubelet. After a kill it goes on with a new sandbox; the garbage collector gets the old one."""

    def __init__(
        self, kubelet: Kubelet, context: Context, collector: GarbageCollector, adds: list[float]
    ) -> None:
        self._kubelet, self._chance, self._state = kubelet, context.another_chance(), context.state
        self._leak, self._kill = context.options.leak, context.options.kill
        self._collector, self._adds = collector, adds
        self._usual_add = 0.01

    def work(self) -> None:
        while not self._state.stopping.is_set():
            sandbox = self._kubelet.create()
            if self._survives(sandbox, self._lifecycle()):
                self._kubelet.remove(sandbox)
            else:
                self._collector.leave(sandbox)

    def _lifecycle(self) -> Lifecycle:
        drawn = self._chance.uniform(0, 100)
        if drawn < self._leak:
            return Lifecycle.LEAKED
        return (
            self._chance.choice(_KILLED) if drawn < self._leak + self._kill else Lifecycle.COMPLETE
        )

    def _survives(self, sandbox: str, lifecycle: Lifecycle) -> bool:
        """Take a sandbox through its lifecycle; return whether the kubelet survives to remove it."""
        if lifecycle is Lifecycle.KILLED_BEFORE_ADD:
            return False
        if lifecycle is Lifecycle.KILLED_IN_ADD:
            self._kubelet.add_killed(sandbox, self._chance.uniform(0, 1.5 * self._usual_add))
            return False
        added = self._kubelet.add(sandbox)
        if added is None:
            self._state.stopping.wait(self._chance.uniform(*_BEFORE_RETRY))
            return True
        self._usual_add = added.seconds
        self._adds.append(added.seconds)
        if lifecycle is Lifecycle.KILLED_AFTER_ADD:
            return False
        self._hold(sandbox)
        if lifecycle is not Lifecycle.LEAKED:
            self._kubelet.delete(sandbox)
        return lifecycle is not Lifecycle.KILLED_AFTER_DEL

    def _hold(self, sandbox: str) -> None:
        left = self._chance.uniform(0, _LONGEST_HOLD)
        while left > 0:
            self._kubelet.read(sandbox)
            seconds = min(left, self._chance.uniform(*_BETWEEN_READS))
            self._state.over.wait(seconds)
            left -= seconds


class DockerRuntime:
    """docker, host-local and a kubelet's threads."""

    def __init__(self, context: Context, directories: Directories) -> None:
        options = context.options
        addresses = [str(_SUBNET[_FIRST + number]) for number in range(options.addresses)]
        host_local = HostLocal(directories.state.parent, directories.networks, addresses)
        self.store = Store(directories.store, addresses, context.ledger)
        self.journal = directories.state / "journal"
        self._context = context
        cache = Cache(directories.cache, host_local.netconf)
        self._kubelet = Kubelet(
            _connected(), secrets.token_hex(4), host_local, cache, self.store, context.ledger
        )
        self._collector = GarbageCollector(self._kubelet.for_another_thread(), context)
        self._adds: list[float] = []
        self._staying = ""
        self._environment = directories.environment()
        common = (self._environment, directories.logs, context.state)
        self.cleaners: list[Loop | Daemon] = [
            Daemon(text, cleaners.daemon_command(text), *common)
            for text in options.daemon
            if text != cleaners.NONE
        ]
        self.cleaners += [
            Loop(text, cleaners.loop_command(text), *common)
            for text in options.cleaner
            if text != cleaners.NONE
        ]

    @contextmanager
    def stays(self) -> Iterator[None]:
        sandbox = self._kubelet.create()
        added = self._kubelet.add(sandbox)
        if added is None:
            raise RuntimeError("an empty store is exhausted")
        self._staying = added.ip
        yield
        self._kubelet.delete(sandbox)
        self._kubelet.remove(sandbox)

    def watchers(self) -> Sequence[Callable[[], None]]:
        return [lambda: self.store.watch(self._context.state.over)]

    def churn(self) -> Sequence[Callable[[], None]]:
        workers = [
            Worker(self._kubelet.for_another_thread(), self._context, self._collector, self._adds)
            for _ in range(self._context.options.workers)
        ]
        return [self._collector.work, *(worker.work for worker in workers)]

    def wind_down(self) -> None:
        self._collector.collect(all_of_them=True)

    def left(self) -> dict[str, str]:
        return {name: found for name, found in self.store.left().items() if name != self._staying}

    def release_by_name(self, addresses: Sequence[str]) -> None:
        subprocess.run(
            [*cleaners.clean_command(), *(f"--ip={ip}" for ip in addresses)],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            timeout=_TIMEOUT,
            check=False,  # what it did not release is tried again, and shown at the end
        )

    def result(self) -> dict[str, Any]:
        held = [
            cleaner.lock_held_seconds for cleaner in self.cleaners if isinstance(cleaner, Daemon)
        ]
        return {
            "add_seconds": self._adds,
            "lock_held_seconds": max((each for each in held if each), default=0.0),
        }

    def remove_containers(self) -> None:
        client = _connected()
        for container in client.containers(
            all=True, filters={"label": f"{_LABEL}={self._kubelet.run_id}"}
        ):
            with suppress(NotFound, APIError):  # another thread's last action
                client.remove_container(container["Id"], v=True, force=True)
        client.close()


@contextmanager
def prepared(context: Context) -> Iterator[DockerRuntime]:
    """Return the runtime in directories of its own; everything that it creates is removed."""
    root = Path(tempfile.mkdtemp(prefix="nodeleak-stress-"))
    try:
        runtime = DockerRuntime(context, Directories(root))
        try:
            yield runtime
        finally:
            runtime.remove_containers()
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _connected() -> docker.APIClient:
    return docker.APIClient(HOST, version="auto", timeout=_TIMEOUT)
