"""A node's network in namespaces of its own: a bridge, pods without any process, and whatever a test adds."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.wire import needs, run, until

_ROOT = Path(__file__).parents[1]
BRIDGE4, BRIDGE6 = "10.244.1.1", "fd00:244::1"


class Network:
    """Everything in it ends with its one process: its mounts, its interfaces, and the namespaces that it mounts."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def enter(self, *command: str) -> tuple[str, ...]:
        """Return what runs a command in it."""
        return ("nsenter", f"--target={self.pid}", "--mount", "--net", "--", *command)

    def run(self, *command: str) -> str:
        return run(*self.enter(*command))

    def ip(self, *commands: str) -> None:
        for command in commands:
            self.run("ip", *command.split())

    def pod(self, name: str, number: int) -> None:
        """Make what a runtime that dies leaves of a pod: a mounted namespace with two addresses, and no process."""
        self.ip(
            f"netns add {name}", f"link add h-{name} type veth peer name eth0 netns {name}",
            f"link set h-{name} master cbr0 up", f"-n {name} link set lo up", f"-n {name} link set eth0 up",
            f"-n {name} addr add 10.244.1.{number}/24 dev eth0",
            f"-n {name} addr add fd00:244::{number}/64 dev eth0 nodad",
        )  # fmt: skip

    def forget_namespaces(self) -> None:
        """Unmount here what this machine has mounted: the table of mounts shows these namespaces too."""
        mounts = self.run("findmnt", "--noheadings", "--raw", "--output=TARGET,FSTYPE").splitlines()
        for mount in mounts:
            target, _, kind = mount.rpartition(" ")
            if kind == "nsfs":
                self.run("umount", "--lazy", target)

    def python(self, code: str, *arguments: str, within: tuple[str, ...] = ()) -> str:
        """Run code that may import the tests' modules: in another mount namespace the working directory is another."""
        return self.run(
            *within, "env", f"PYTHONPATH={_ROOT}", sys.executable, "-c", code, *arguments
        )

    def udp_received(self, pod: str) -> int:
        """Return how many datagrams have reached a pod: nothing listens in it."""
        counters = [
            line.split()
            for line in self.run("ip", "netns", "exec", pod, "cat", "/proc/net/snmp").splitlines()
        ]
        names, values = (line for line in counters if line[0] == "Udp:")
        return int(dict(zip(names, values, strict=True))["NoPorts"])


@contextmanager
def network() -> Iterator[Network]:
    """Make a network with the bridge of the pods."""
    tools = all(shutil.which(tool) for tool in ("ip", "unshare", "nsenter"))
    needs(os.geteuid() == 0 and tools, "root, iproute2 and util-linux, to make network namespaces")
    command = ("unshare", "--mount", "--net", "--propagation=private", "sleep", "300")
    with subprocess.Popen(command) as process:  # noqa: S603 (a command of ours)
        try:
            until(
                lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n",
                "unshare has become sleep",
            )
            made = Network(process.pid)
            made.forget_namespaces()
            made.run("mkdir", "-p", "/run/netns")
            made.run("mount", "-t", "tmpfs", "tmpfs", "/run/netns")
            # A bridge without an address of its own changes it with its ports, and the kernel forgets all neighbors.
            made.ip(
                "link set lo up", "link add cbr0 type bridge", "link set cbr0 address 0a:58:0a:f4:01:01 up",
                f"addr add {BRIDGE4}/24 dev cbr0", f"addr add {BRIDGE6}/64 dev cbr0 nodad",
            )  # fmt: skip
            yield made
        finally:
            process.kill()


# Sees every UDP datagram to port 9 that arrives at an interface, until its input ends.
SNIFFER = """
import select, socket, sys
packets = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
packets.bind((sys.argv[1], 0))
print("ready", flush=True)
seen = 0
while not select.select([packets, sys.stdin], [], [])[0].count(sys.stdin):
    packet = packets.recv(65536)
    version = packet[0] >> 4
    protocol, at = (packet[9], (packet[0] & 15) * 4) if version == 4 else (packet[6], 40)
    seen += version in (4, 6) and protocol == 17 and packet[at + 2 : at + 4] == b"\\0\\x09"
print(seen)
"""


@contextmanager
def sniffer(network: Network, pod: str, interface: str) -> Iterator[list[int]]:
    """Count the datagrams that arrive at an interface of a pod. The list has the number after the block."""
    command = network.enter("ip", "netns", "exec", pod, sys.executable, "-c", SNIFFER, interface)
    counted: list[int] = []
    with subprocess.Popen(  # noqa: S603
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        yield counted
        out, _ = process.communicate("\n")
        counted.append(json.loads(out))
