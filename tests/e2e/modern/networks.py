"""Gives a node another CNI configuration, with what it needs: flanneld, or a plugin that is not there."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.node import eventually
from tests.processes import environment

from .layouts import Layout
from .node import ModernNode

_PERIOD: Final = (
    6  # Seconds; cri-dockerd reads the configuration every five, the other runtimes notice a change
)
_DELETE_LINKS: Final = "for kind in bridge veth; do ip -o link show type $kind; done | awk -F'[:@ ]+' '$2 != \"eth0\" {print $2}' | xargs -r -n1 ip link delete 2>/dev/null; true"  # noqa: E501 (one line of shell)
_FLANNEL: Final = {
    "Network": "10.254.0.0/16",
    "EnableNFTables": False,
    "Backend": {"Type": "host-gw"},
}
NODES_MAY: Final = [
    {"apiGroups": [""], "resources": ["nodes", "events"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
    {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["update", "patch"]},
    {"apiGroups": ["k8s.cni.cncf.io"], "resources": ["*"], "verbs": ["get", "list", "watch"]},
]
"""What the accounts of flannel and Multus may; here they use the node's."""


@contextmanager
def configured(node: ModernNode, layout: Layout) -> Iterator[None]:
    """Replace the node's CNI configuration during the block, and remove what its plugins leave."""
    own = {path.name: path.read_text() for path in node.net_d.iterdir() if path.is_file()}
    node.run("sh", "-c", _DELETE_LINKS)  # another network's bridge has another address
    calico = (
        Path(__file__).with_name("calico").read_text().replace("POD_CIDR", node.cluster.pod_cidr)
    )
    (node.plugins / "calico").write_text(calico)
    (node.plugins / "calico").chmod(0o755)
    try:
        with flanneld(node) if layout.flanneld else nullcontext():
            _replace(
                node,
                {
                    name: json.dumps(one).replace("{number}", node.number)
                    for name, one in layout.files.items()
                },
            )
            yield
            node.clear()
    finally:
        node.clear()
        _replace(node, own)
        node.run("sh", "-c", f"rm -rf {layout.directory} /var/lib/cni/multus; {_DELETE_LINKS}")


def _replace(node: ModernNode, files: dict[str, str]) -> None:
    for path in node.net_d.iterdir():
        if path.is_file():
            path.unlink()
    for name, content in files.items():
        new = (
            node.net_d / f"{name}.new"
        )  # containerd loads a file that is renamed here, not one that appears
        new.write_text(content)
        new.rename(node.net_d / name)
    if node.profile == "cri-dockerd":
        node.run("sleep", str(_PERIOD))
    shutil.rmtree(node.networks, ignore_errors=True)


@contextmanager
def flanneld(node: ModernNode) -> Iterator[None]:
    """Run flanneld on the node during the block. It writes /run/flannel/subnet.env."""
    node.write("/etc/kube-flannel/net-conf.json", json.dumps(_FLANNEL))
    command = (
        "flanneld",
        "--kube-subnet-mgr",
        "--kubeconfig-file=/etc/kubernetes/kubelet.conf",
        "--iface=eth0",
    )
    options: Any = {
        "env": environment(NODE_NAME=node.cluster.node),
        "stderr": subprocess.PIPE,
        "text": True,
    }
    with allowed(node), subprocess.Popen([*node.inside, *command], **options) as daemon:  # noqa: S603 (on the node)
        try:
            eventually(lambda: _has_subnet(node, daemon))
            yield
        finally:
            daemon.terminate()
            daemon.communicate()


def _has_subnet(node: ModernNode, daemon: subprocess.Popen[str]) -> None:
    if daemon.poll() is not None:
        pytest.fail(f"flanneld: {daemon.stderr and daemon.stderr.read()}")
    node.run("test", "-s", "/run/flannel/subnet.env")


@contextmanager
def allowed(node: ModernNode) -> Iterator[None]:
    """Let the node's account do what flannel and Multus need, and list Events, during the block."""
    account = f"system:node:{node.cluster.node}"
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": account}
    with node.cluster.may(f"e2e-{node.cluster.node}", NODES_MAY, subject):
        # The server learns of them a moment later.
        eventually(lambda: node.kubectl("auth", "can-i", "list", "events", f"--as={account}"))
        yield
