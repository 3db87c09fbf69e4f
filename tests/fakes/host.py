r"""A fake of a kubenet node's file system: host-local's store, libcni's cache, checkpoints and `/proc`.

The formats are those of host-local >= 0.8 (`<id>\r\neth0`), libcni >= 0.8 (`cniCacheV1`), dockershim's checkpoints v1
and proc(5), as far as the agent reads them.
"""

import base64
import json
import os
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.fakes.nodes import FakeNode, PodSandbox
from tests.wire import kubeconfig

_TICKS = os.sysconf("SC_CLK_TCK")
_RUNTIME, _KUBELET, _FIRST_SANDBOX = 812, 340113, 341000  # Process ids


class Host:
    """One fake node's directory, laid out like a real root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.networks = root / "var/lib/cni/networks"
        self.store = self.networks / "kubenet"
        self.cache = root / "var/lib/cni/cache/results"
        self.net_d = root / "etc/cni/net.d"
        self.checkpoints = root / "var/lib/dockershim/sandbox"
        self.proc = root / "proc"
        self.docker_socket = root / "run/docker.sock"
        self.containerd_socket = root / "run/containerd.sock"
        self.kubeconfig = root / "etc/kubeconfig"
        self.account = root / "serviceaccount"
        self.state = root / "var/lib/nodeleak"
        self.restore_options = (
            f"--cni-networks-dir={self.networks}",
            f"--cni-cache-dir={self.cache}",
            f"--state-dir={self.state}",
        )
        """The options that make `nodeleak restore` write here and nowhere else."""
        self.asking_options = (
            *self.restore_options,
            f"--cni-config-dir={self.net_d}",
            f"--proc={self.proc}",
        )
        """Those of a restoration that has to ask which network has a directory."""
        self.options_without_docker = (
            *self.restore_options,
            f"--cni-config-dir={self.net_d}",
            f"--checkpoint-dir={self.checkpoints}",
            "--device-plugins-dir=off",
            "--kubelet-dir=off",
            f"--proc={self.proc}",
        )
        """Those of a node without docker, whose runtime the kubelet names."""
        self.options = (f"--docker-host=unix://{self.docker_socket}", *self.options_without_docker)
        """The options that make nodeleak read and write here and nowhere else."""

    @property
    def pod_environment(self) -> dict[str, str]:
        """Where a pod of this node finds the API server."""
        port = (self.account / "port").read_text()
        return {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": port}

    def in_pod(self, python: Path) -> list[str]:
        """Return the start of a command of nodeleak that runs as in a pod, with `pod_environment`."""
        program = Path(__file__).parent / "in_pod.py"
        return [str(python), "-P", str(program), str(self.account)]


def build(root: Path, node: FakeNode) -> Host:
    """Write a node's files under a directory."""
    host = Host(root)
    store = host.networks / node.network
    for directory in (
        store,
        host.cache,
        host.net_d,
        host.checkpoints,
        host.proc,
        host.docker_socket.parent,
    ):
        directory.mkdir(parents=True)
    if node.uses_cni:
        plugins = [{"type": "bridge", "ipam": _ipam(node)}]
        configure(host.net_d / f"10-{node.network}.conflist", node.network, *plugins)
    write_store(store, (*node.reserved, *node.ownerless_files))
    for sandbox in node.reserved:
        _write_results(host.cache, node, sandbox)
    for sandbox in node.running:
        _write_checkpoint(host.checkpoints, sandbox)
    _write_proc(host, node)
    return host


def configure(path: Path, name: str, *plugins: dict[str, Any], **more: Any) -> None:
    """Write a CNI configuration."""
    path.write_text(
        json.dumps({"cniVersion": "1.0.0", "name": name, **more, "plugins": list(plugins)})
    )


def _ipam(node: FakeNode) -> dict[str, Any]:
    ipam: dict[str, Any] = {"type": "host-local", "ranges": [[{"subnet": str(node.cidr)}]]}
    return ipam | ({"dataDir": node.data_dir} if node.data_dir else {})


def write_store(store: Path, sandboxes: Iterable[PodSandbox]) -> None:
    """Write host-local's directory: a file for each address, `last_reserved_ip.0` and `lock`."""
    last = ""
    for sandbox in sandboxes:
        _write(store / sandbox.ip, f"{sandbox.id}\r\neth0", sandbox.made)
        last = sandbox.ip
    (store / "last_reserved_ip.0").write_text(last)
    (store / "lock").touch()


def write_sockets(proc: Path, *listening: str) -> None:
    """Write the node's list of unix sockets, of which these are listened on. Its network is that of the reader.

    No network namespace is mounted on it, unless a mount table says so.
    """
    if not (proc / "1/net").exists():
        (proc / "1/net").mkdir(parents=True)
        (proc / "1/net/dev").symlink_to("/proc/self/net/dev")
    (proc / "1/mountinfo").touch()
    head = "Num       RefCount Protocol Flags    Type St Inode Path\n"
    line = "0000000000000000: 00000002 00000000 00010000 0001 01 {} {}\n"
    (proc / "1/net/unix").write_text(
        head + "".join(line.format(number, one) for number, one in enumerate(listening))
    )


def write_kubeconfig(host: Host, server: str) -> None:
    host.kubeconfig.parent.mkdir(parents=True, exist_ok=True)
    kubeconfig(host.kubeconfig, server)


def _write(path: Path, text: str, when: datetime) -> None:
    path.write_bytes(text.encode())
    os.utime(path, (when.timestamp(), when.timestamp()))


def _write_results(cache: Path, node: FakeNode, sandbox: PodSandbox) -> None:
    """Write what libcni keeps of the two ADDs of a kubenet sandbox.

    kubenet itself passes no CNI arguments, so its cache names no pod; dockershim's cni plugin does. They are here
    because otherwise only a daemon that ran before the leak would know the pod of a leaked address.
    """
    bridge = {"name": node.network, "type": "bridge", "bridge": "cbr0", "ipam": _ipam(node)}
    address = {
        "ip": f"{sandbox.ip}/{node.cidr.prefixlen}",
        "gateway": str(node.cidr.network_address + 1),
    }
    loopback = {"name": "kubenet-loopback", "type": "loopback"}
    for ifname, config, ip4 in (
        ("eth0", bridge, address | {"routes": [{"dst": "0.0.0.0/0"}]}),
        ("lo", loopback, {"ip": "127.0.0.1/8"}),
    ):
        tree = {
            "kind": "cniCacheV1",
            "containerId": sandbox.id,
            "config": base64.b64encode(
                json.dumps({"cniVersion": "0.1.0", **config}).encode()
            ).decode(),
            "ifName": ifname,
            "networkName": config["name"],
            "cniArgs": [["K8S_POD_NAMESPACE", sandbox.namespace], ["K8S_POD_NAME", sandbox.pod]],
            "result": {"cniVersion": "0.2.0", "ip4": ip4, "dns": {}},
        }
        text = json.dumps(tree, separators=(",", ":"))
        _write(cache / f"{config['name']}-{sandbox.id}-{ifname}", text, sandbox.made)


def _write_checkpoint(directory: Path, sandbox: PodSandbox) -> None:
    tree = {
        "version": "v1",
        "name": sandbox.pod,
        "namespace": sandbox.namespace,
        "data": {} if sandbox.ip else {"host_network": True},
        "checksum": int(sandbox.id[:8], 16),
    }
    _write(directory / sandbox.id, json.dumps(tree, separators=(",", ":")), sandbox.made)


def _write_proc(host: Host, node: FakeNode) -> None:
    proc, socket = host.proc, host.containerd_socket
    booted = int(node.booted.timestamp())
    (proc / "stat").write_text(f"cpu  1 0 1 1 0 0 0 0 0 0\nbtime {booted}\nprocesses 1\n")
    boot_id = proc / "sys/kernel/random/boot_id"
    boot_id.parent.mkdir(parents=True)
    boot_id.write_text("3f0a9c52-7c1e-4d5a-9f2b-0040040040ac\n")
    _write_process(proc, 1, "systemd", 0, node.ip, 0)
    write_sockets(proc, *(() if node.uses_docker else (str(socket),)))
    for pid, command, started, flags in (
        (_RUNTIME, "dockerd" if node.uses_docker else "containerd", node.docker_started, ()),
        (_KUBELET, "kubelet", node.kubelet_started, node.kubelet_flags(socket)),
    ):
        _write_process(proc, pid, command, started.timestamp() - booted, node.ip, 0)
        (proc / f"{pid}/cmdline").write_text(
            "".join(f"{word}\0" for word in (f"/usr/bin/{command}", *flags))
        )
    for number, sandbox in enumerate(node.running, 1):
        # A pod of the node's network lives in the node's own namespace.
        namespace = number if sandbox.ip else 0
        seconds = sandbox.made.timestamp() - booted
        _write_process(
            proc, _FIRST_SANDBOX + number, "pause", seconds, sandbox.ip or node.ip, namespace
        )


def _write_process(
    proc: Path, pid: int, command: str, seconds: float, ip: str, namespace: int
) -> None:
    thread = proc / f"{pid}/task/{pid}"
    thread.mkdir(parents=True)
    fields = ["S", "1", str(pid), str(pid), *["0"] * 15, str(int(seconds * _TICKS)), *["0"] * 30]
    (proc / f"{pid}/stat").write_text(f"{pid} ({command}) {' '.join(fields)}\n")
    (proc / f"{pid}/comm").write_text(f"{command}\n")
    (proc / f"{pid}/mountinfo").touch()
    net = proc / f"net-{namespace}"
    if not net.exists():
        net.mkdir()
        (net / "if_inet6").write_text("00000000000000000000000000000001 01 80 10 80       lo\n")
        (net / "fib_trie").write_text(_FIB_TRIE.format(ip=ip))
    (thread / "net").symlink_to(net)  # the files of one namespace, as in each of its threads


_FIB_TRIE = """\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     |-- {ip}
        /32 host LOCAL
     |-- 127.0.0.1
        /32 host LOCAL
"""
