"""The cleaners for a node with containerd."""

import shlex
import sys
from pathlib import Path
from typing import Final

from tests.containerd.node import NODELEAK, ContainerdNode
from tests.stress.command import AT_ONCE, Command

WITHOUT_PROBE: Final = "without-probe"
"""nodeleak with `--probe=off`, which takes addresses of network namespaces that nothing names: this shows that the
checker notices."""
NAMES: Final = ("nodeleak", WITHOUT_PROBE, "one-liner", "none")


def named(name: str, node: ContainerdNode) -> Command | None:
    """Return the command that is run in a loop."""
    if name == "none":
        return None
    if name == "one-liner":
        return Command(name, shlex.join(["bash", str(Path(__file__).with_name("one_liner.sh"))]))
    probe = "off" if name == WITHOUT_PROBE else "on"
    options = (f"--probe={probe}", "--network=pods", "--cleanup-network=pods", "--output=json", *AT_ONCE)
    return Command(name, shlex.join(node.enter(str(NODELEAK), "clean", "--apply", *options)))


def pods(home: Path) -> str:
    """Return the command that lists the pods."""
    return shlex.join([sys.executable, "-m", "tests.containerd.pods", str(home / "run/containerd.sock")])
