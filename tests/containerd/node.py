"""One containerd in mount, network and PID namespaces of its own, where every path is that of a real node.

Everything in it ends with its first process. Its CNI network is `pods`: the real bridge and host-local.
"""

import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from agent.sources.source_error import SourceError
from tests import processes
from tests.containerd.client import NAMESPACE, Kubelet
from tests.containerd.packages import CannotRun, Packages
from tests.e2e.node import reservations, run

NETWORK: Final = "pods"
_SUBNET: Final = "10.231.0.0/24"
_TOOLS: Final = ("unshare", "nsenter", "setpriv", "runc", "ip", "mount", "jq")
_CNI: Final = Path("/usr/lib/cni")
_PLUGINS: Final = Path(__file__).with_name("plugins")
_KNOWN_TO_NODE: Final = ("cni", "containerd", "nodeleak")
_NAMESPACES: Final = [
    "--mount",
    "--net",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
    "--propagation=private",
]
_START: Final = 30.0
_IMAGE: Final = "docker.io/nodeleak/pause:1"
_PAUSE: Final = Path(__file__).parents[2] / "hack/cluster.d/pause.c"

_FIRST_PROCESS: Final = """
set -e
home=$1
mkdir -p /run/containerd /run/netns /etc/cni /var/lib/cni /var/lib/containerd /var/lib/nodeleak
mount --bind "$home/run" /run/containerd
mount -t tmpfs netns /run/netns
for name in cni containerd nodeleak; do mount --bind "$home/$name" "/var/lib/$name"; done
mount --bind "$home/etc-cni" /etc/cni
ip link set lo up
exec "$home/pause"
"""
_CONFIGURATION: Final = """\
version = 2
disabled_plugins = [
  "io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri", "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.erofs", "io.containerd.snapshotter.v1.zfs",
]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{image}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{home}/plugins"
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
"""


class ContainerdNode:
    """The node, from outside. `home`: its directories."""

    def __init__(self, packages: Packages, home: Path) -> None:
        self.packages, self.home = packages, home
        self.store = home / "cni/networks" / NETWORK
        self.results = home / "cni/results"
        self.kubelet = Kubelet(home / "run/containerd.sock", f"/{home.name}", str(home / "logs"))
        self._first: subprocess.Popen[bytes] | None = None
        self._containerd: subprocess.Popen[bytes] | None = None
        self._children: list[subprocess.Popen[bytes]] = []

    # The node as a whole

    def start(self, chained: Sequence[Mapping[str, Any]] = (), subnet6: str = "") -> None:
        """Start it with an empty store; raises CannotRun. `subnet6`: for a second address of each sandbox, by IPv6."""
        for name in ("run", "etc-cni/net.d", "knobs", "logs", *_KNOWN_TO_NODE):
            (self.home / name).mkdir(parents=True, exist_ok=True)
        self._provide_plugins()
        self.configure_network(NETWORK, chained, subnet6)
        (self.home / "config.toml").write_text(_CONFIGURATION.format(image=_IMAGE, home=self.home))
        _build_image(self.home / "pause", self.home / "image.tar")
        (self.home / "kubelet").symlink_to("pause")
        # It ends with this program too.
        own = ("setpriv", "--pdeathsig=KILL", "unshare", *_NAMESPACES)
        self._first = self._spawn("first", *own, "sh", "-c", _FIRST_PROCESS, "sh", str(self.home))
        self._wait(
            lambda: self.first and Path(f"/proc/{self.first}/comm").read_text() == "pause\n",
            "its first process",
        )
        # The agent acts only on a runtime that a kubelet names. This one does nothing else.
        endpoint = "--container-runtime-endpoint=unix:///run/containerd/containerd.sock"
        self._spawn("kubelet", *self.enter(str(self.home / "kubelet"), endpoint))
        self.start_containerd()
        local = ["--local"] if self.packages.family == "2" else []
        self.ctr("images", "import", *local, "--snapshotter=native", str(self.home / "image.tar"))

    def end(self) -> None:
        """End every process of it, and remove its cgroups."""
        if self._first is not None:
            self._first.kill()
        for child in self._children:
            child.wait(20)
        # The kernel keeps a cgroup for a moment after its last process has ended.
        for _ in processes.until(time.monotonic() + _START):
            if not self._remove_cgroups():
                return

    def _remove_cgroups(self) -> bool:
        """Return whether some of them are left."""
        found = list(Path("/sys/fs/cgroup").glob(f"*/{self.home.name}"))
        found += Path("/sys/fs/cgroup").glob(self.home.name)
        for directory in sorted((one for each in found for one in each.glob("**/")), reverse=True):
            with suppress(OSError):
                directory.rmdir()
        return any(one.exists() for one in found)

    # containerd

    def start_containerd(self) -> None:
        """Start it and wait until it answers; raises CannotRun."""
        environment = processes.environment(
            PATH=f"{self.packages.binaries}:{os.environ['PATH']}:/usr/sbin:/sbin"
        )
        command = self.enter("containerd", "--config", str(self.home / "config.toml"))
        self._containerd = self._spawn("containerd", *command, env=environment)
        self._wait(self._answers, "containerd")

    def kill_containerd(self) -> None:
        """Kill it as the kernel does when memory runs out: plugins and sandboxes survive."""
        assert self._containerd
        os.kill(_child(self._containerd.pid), signal.SIGKILL)
        self._containerd.wait(20)

    def _answers(self) -> bool:
        assert self._containerd
        if self._containerd.poll() is not None:
            raise CannotRun(f"a containerd that starts: {self._log('containerd')[-600:]}")
        try:
            self.kubelet.sandboxes()
        except SourceError:
            return False
        return True

    def ctr(self, *arguments: str) -> str:
        return self.run(str(self.packages.binaries / "ctr"), "-n", NAMESPACE, *arguments)

    def collect(self, keep: Iterable[str] = ()) -> None:
        """Stop and remove every other sandbox that is listed, as a kubelet does after a restart. Raises SourceError."""
        for sandbox in set(self.kubelet.sandboxes()).difference(keep):
            self.kubelet.stop(sandbox)
            self.kubelet.remove(sandbox)

    def lose_record(self, sandbox: str) -> None:
        """Kill a sandbox and delete its records. CRI lists it until containerd starts again, and then nobody does."""
        self.ctr("tasks", "kill", "-s", "KILL", sandbox)
        self.kubelet.forget(sandbox)

    # Its network

    def configure_network(
        self, name: str, chained: Sequence[Mapping[str, Any]] = (), subnet6: str = ""
    ) -> None:
        """Write the only network that containerd loads; it notices a change by itself."""
        ipam = {
            "type": "host-local",
            "ranges": [[{"subnet": subnet}] for subnet in (_SUBNET, subnet6) if subnet],
        }
        plugins = [{"type": "bridge", "bridge": "cni0", "isGateway": True, "ipam": ipam}, *chained]
        # Written in place: containerd ignores a file that is moved here.
        configuration = {"cniVersion": "0.4.0", "name": name, "plugins": plugins}
        (self.home / "etc-cni/net.d/10-pods.conflist").write_text(json.dumps(configuration))

    def turn(self, **knobs: str | None) -> None:
        """Set how host-local behaves: `before_add="0.5"`, and so on; None removes a knob."""
        for name, value in knobs.items():
            knob = self.home / "knobs" / name.replace("_", "-")
            if value is None:
                knob.unlink(missing_ok=True)
            else:
                knob.write_text(value)

    def held(self) -> str:
        """Return the container of an ADD that waited (`hold_before_add`, `hold_after_add`)."""
        file = self.home / "knobs/held"
        return file.read_text().strip() if file.exists() else ""

    def deleted(self, container_id: str) -> bool:
        """Return whether a DEL of a container has ended."""
        return (self.home / f"knobs/deleted-{container_id}").exists()

    @property
    def reserved(self) -> dict[str, str]:
        """The ids by address, read without the agent's code."""
        return {ip: owner.strip() for ip, owner in reservations(self.store).items()}

    def not_of(self, sandbox: str) -> set[str]:
        """Return the addresses of other sandboxes."""
        return {ip for ip, owner in self.reserved.items() if owner != sandbox}

    def plugins_running(self) -> bool:
        """Return whether a CNI plugin of this node runs."""
        for command_line in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                if f"{self.home}/plugins/" in "\0".join(
                    command_line.read_text(errors="replace").split("\0")[:2]
                ):
                    return True
        return False

    def forget_result(self, sandbox: str) -> None:
        """Remove libcni's cached result of a sandbox."""
        (self.results / f"{NETWORK}-{sandbox}-eth0").unlink()

    def namespace_of(self, sandbox: str) -> str:
        """Return the name of the network namespace in libcni's cached result; empty: there is none."""
        cached = self.results / f"{NETWORK}-{sandbox}-eth0"
        interfaces = (
            json.loads(cached.read_text())["result"]["interfaces"] if cached.exists() else []
        )
        return next((Path(one["sandbox"]).name for one in interfaces if one.get("sandbox")), "")

    # Commands inside

    def enter(self, *command: str) -> tuple[str, ...]:
        """Return what runs a command in the node."""
        target = ("nsenter", f"--target={self.first}", "--mount", "--net", "--pid")
        return (*target, "setpriv", "--pdeathsig=KILL", "--", *command)

    def run(self, *command: str) -> str:
        environment = processes.environment(PATH=f"{os.environ['PATH']}:/usr/sbin:/sbin")
        return run(*self.enter(*command), env=environment).stdout

    @property
    def first(self) -> int:
        """Its first process, as it is seen from outside."""
        assert self._first
        return _child(self._first.pid)

    def _provide_plugins(self) -> None:
        provided = self.home / "plugins"
        provided.mkdir()
        for name in ("bridge", "loopback", "portmap"):
            (provided / name).symlink_to(_CNI / name)
        (provided / "host-local.real").symlink_to(_CNI / "host-local")
        for plugin in _PLUGINS.iterdir():
            shutil.copy(plugin, provided)

    def _spawn(
        self, name: str, *command: str, env: Mapping[str, str] | None = None
    ) -> "subprocess.Popen[bytes]":
        with (self.home / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env and dict(env),
                start_new_session=True,
            )
        self._children.append(child)
        return child

    def _log(self, name: str) -> str:
        return (self.home / f"{name}.log").read_text(errors="replace")

    def _wait(self, true: Any, what: str) -> None:
        for _ in processes.until(time.monotonic() + _START):
            if true():
                return
        raise CannotRun(
            f"{what} to start within {_START:.0f} s ({self.home}): {self._log('first')[-300:]}"
        )


@contextmanager
def containerd_node(packages: Packages, **options: Any) -> Iterator[ContainerdNode]:
    """Start a node; everything of it is gone after the block. Raises CannotRun."""
    missing = [
        tool
        for tool in _TOOLS
        if not shutil.which(tool, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    ]
    if missing or os.geteuid() != 0 or not (_CNI / "host-local").exists():
        raise CannotRun(f"root, host-local in {_CNI}, and {', '.join(missing) or 'nothing else'}")
    home = Path(tempfile.mkdtemp(prefix="nodeleak-containerd-"))
    node = ContainerdNode(packages, home)
    try:
        node.start(**options)
        yield node
    finally:
        node.end()
        shutil.rmtree(home, ignore_errors=True)


def _child(pid: int) -> int:
    """Return the only child of a process; 0: it has none yet."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else 0


def _build_image(binary: Path, image: Path) -> None:
    """Compile the image of a sandbox, one static binary that waits, as `docker save` writes it; raises CannotRun."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if not compiler:
        raise CannotRun(
            "gcc, to build the image of a sandbox (Debian: apt-get install gcc libc6-dev)"
        )
    done = subprocess.run(
        [compiler, "-static", "-Os", "-o", str(binary), str(_PAUSE)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise CannotRun(f"a compiler that builds {_PAUSE.name}: {done.stderr[-300:]}")
    layer = _tar({"pause": binary.read_bytes()}, mode=0o755)
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": ["/pause"]},
            "rootfs": {
                "type": "layers",
                "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"],
            },
        }
    ).encode()
    manifest = json.dumps(
        [{"Config": "config.json", "RepoTags": [_IMAGE], "Layers": ["layer.tar"]}]
    ).encode()
    image.write_bytes(_tar({"manifest.json": manifest, "config.json": config, "layer.tar": layer}))


def _tar(files: dict[str, bytes], mode: int = 0o644) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return written.getvalue()
