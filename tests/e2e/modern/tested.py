"""What was seen on real nodes: a layout that passed is recorded with the versions that it passed on, for the README."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from .layouts import LAYOUTS, MULTUS, Layout
from .node import ModernNode

_RECORD: Final = Path(__file__).with_name("tested.json")
_NAMES: Final = {"cri-o": "CRI-O", "docker": "docker with cri-dockerd, moby"}
_DOCKER: Final = Path(__file__).parents[3] / "hack/cluster.d/go/docker/go.mod"


def record(node: ModernNode, layout: Layout) -> None:
    """Add the versions of this node, if NODELEAK_E2E_RECORD is set."""
    if not os.environ.get("NODELEAK_E2E_RECORD"):
        return
    info = json.loads(node.kubectl("get", "node", node.cluster.node, "-o", "json"))["status"]["nodeInfo"]
    runtime, _, version = info["containerRuntimeVersion"].partition("://")
    if runtime == "docker":  # built without a version: the module has it
        (version,) = re.findall(r"moby/moby/v2 v(\S+)", _DOCKER.read_text())
    seen = (
        f"{_NAMES.get(runtime, runtime)} {version.partition('+')[0]}, Kubernetes {info['kubeletVersion'].lstrip('v')}"
    )
    tested = _tested()
    tested[layout.name] = sorted({*tested.get(layout.name, ()), seen})
    _RECORD.write_text(json.dumps(tested, indent=1, sort_keys=True) + "\n")


def _tested() -> dict[str, list[str]]:
    found: dict[str, list[str]] = json.loads(_RECORD.read_text()) if _RECORD.exists() else {}
    return found


def table() -> Iterator[str]:
    """Yield the rows of the README's table."""
    yield "| distribution | directory of its network | tested on a real node | probe | release |"
    yield "|---|---|---|---|---|"
    tested = _tested()
    for layout in (*LAYOUTS, MULTUS):
        seen = "; ".join(tested.get(layout.name, ["no"]))
        but = f" ({layout.stand_in})" if layout.stand_in else ""
        usual = layout.data_dir.startswith("/var/lib/cni/")
        release = "yes" if usual else "yes, with `deploy/overlays/data-dir`"
        probe = "yes" if layout.probe else "no"
        yield f"| {layout.distribution} | `{layout.directory}` | {seen}{but} | {probe} | {release} |"


def main() -> None:
    """Put the table into the README."""
    readme = Path(__file__).parents[3] / "README.md"
    text = readme.read_text()
    first, last = text.index("| distribution |"), text.index("\n\n", text.index("| distribution |"))
    readme.write_text(text[:first] + "\n".join(table()) + text[last:])


if __name__ == "__main__":
    main()
