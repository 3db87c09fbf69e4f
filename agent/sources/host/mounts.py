"""Reads which attachable volumes are mounted, only while the Node lacks a volume in use.

The path below the kubelet's directory identifies the volume; for CSI, the file `vol_data.json`
beside it does.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.checks.cluster import detached_volume
from agent.model.remedy import Remedy
from agent.model.snapshot import NotRequested, Snapshot, known_or
from agent.model.volumes import Mount
from agent.sources.host.files import read_file
from agent.sources.host.mount_table import read_mount_table
from agent.sources.source import Source
from agent.sources.source_error import MALFORMED, SourceError, read_error

# Mount points of volumes below the kubelet's directory: of CSI, FlexVolume, and in-tree plugins.
_CSI_OF_POD: Final = re.compile(r"(pods/(?P<pod_uid>[^/]+)/volumes/kubernetes\.io~csi/[^/]+)/mount")
_CSI_BLOCK: Final = re.compile(
    r"(plugins/kubernetes\.io/csi/volumeDevices)/(?:staging|publish)/(?P<name>[^/]+)(?:/.*)?"
)
_CSI_STAGED: Final = re.compile(r"(plugins/kubernetes\.io/csi/.+)/globalmount")
_FLEX: Final = re.compile(
    r"plugins/kubernetes\.io/flexvolume/(?P<driver>[^/]+/[^/]+)/mounts/(?P<volume>[^/]+)"
)
_FLEX_OF_POD: Final = re.compile(
    r"pods/(?P<pod_uid>[^/]+)/volumes/(?!kubernetes\.io~)"
    r"(?P<vendor>[^/~]+)~(?P<driver>[^/]+)/(?P<volume>[^/]+)"
)
_IN_TREE: Final = re.compile(r"plugins/(kubernetes\.io/(?!csi/|flexvolume/)[^/]+)/mounts/(.+)")

_OF_ANY_KUBELET: Final = re.compile(
    r"(?P<kubelet_dir>/.+)/(?:plugins/kubernetes\.io|pods/[^/]+/volumes)/[^/]+/.+"
)
"""The whole mount point of a volume."""


@dataclass(frozen=True)
class MountsSource(Source):
    proc: Path
    kubelet_dir: Path | None
    """None: --kubelet-dir=off."""
    name = "mounts"

    def reason_not_needed(self, snapshot: Snapshot) -> str | None:
        node = known_or(snapshot.node, None)
        if node and detached_volume.missing(node):
            return None
        return "no volume is missing from the node's volumesAttached"

    def read(self, _: Snapshot) -> tuple[Mount, ...] | NotRequested:
        if self.kubelet_dir is None:
            return NotRequested(self.name, "--kubelet-dir=off")
        return read_mounts(self.proc, self.kubelet_dir)


def read_mounts(proc: Path, kubelet_dir: Path) -> tuple[Mount, ...]:
    """Return each mounted volume: once for each of its pods, and once if it is staged for them.

    Raises SourceError. `kubelet_dir`: a path of the node, which must be mounted there in a pod.
    """
    plugins = kubelet_dir / "plugins"
    try:
        plugins.stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        remedy = Remedy("check --kubelet-dir, and that it is mounted")
        raise SourceError(f"{plugins} does not exist: {remedy}", remedy) from error
    except OSError as error:
        raise read_error(plugins, error) from error

    start = f"{kubelet_dir}/"
    points = [entry.point for entry in read_mount_table(proc)]
    paths = [point.removeprefix(start) for point in points if point.startswith(start)]

    # The table has real paths: below a link that leads to the kubelet's directory it shows nothing.
    other = next(filter(None, map(_OF_ANY_KUBELET.fullmatch, points)), None)
    if other and not paths:
        where = f"volumes are mounted below {other['kubelet_dir']}, not below {kubelet_dir}"
        remedy = Remedy("set --kubelet-dir to the real path")
        raise SourceError(f"{where}: {remedy}", remedy)

    volumes = (_mount(path, kubelet_dir) for path in paths)
    return tuple(dict.fromkeys(filter(None, volumes)))


def _mount(path: str, kubelet_dir: Path) -> Mount | None:
    """Return the volume that is mounted at a path below the kubelet's directory, if one is."""
    if parts := _CSI_OF_POD.fullmatch(path):
        return _csi_mount(kubelet_dir / parts[1], parts["pod_uid"])
    if parts := _CSI_BLOCK.fullmatch(path):
        return _csi_mount(kubelet_dir / parts[1] / parts["name"] / "data", "")
    if parts := _CSI_STAGED.fullmatch(path):
        return _csi_mount(kubelet_dir / parts[1], "")
    if parts := _FLEX.fullmatch(path):
        return Mount(f"{parts['driver']}/{parts['volume']}")
    if parts := _FLEX_OF_POD.fullmatch(path):
        name = f"{parts['vendor']}/{parts['driver']}/{parts['volume']}"
        return Mount(name, parts["pod_uid"])

    if parts := _IN_TREE.fullmatch(path):
        plugin, volume = parts.groups()
        if plugin == "kubernetes.io/aws-ebs":
            volume = re.sub("^aws/", "aws://", volume)
        elif plugin == "kubernetes.io/rbd":
            volume = volume.replace("-image-", ":", 1)
        return Mount(f"{plugin}/{volume}")
    return None


def _csi_mount(directory: Path, pod_uid: str) -> Mount | None:
    """Return the volume that the file in a directory describes; None: it was unmounted meanwhile."""
    file = directory / "vol_data.json"
    try:
        content, _ = read_file(file)
        tree = json.loads(content)
        return Mount(f"kubernetes.io/csi/{tree['driverName']}^{tree['volumeHandle']}", pod_uid)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise read_error(file, error) from error
    except MALFORMED as error:
        raise SourceError(f"{file}: not a volume description of the kubelet ({error!r})") from error
