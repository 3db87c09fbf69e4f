"""The mounted volumes of those that have to be attached. Read-only, and only if a volume is missing.

The path below the kubelet's directory identifies the volume; for CSI, the file `vol_data.json`
beside it does.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from agent.checks.cluster import detached_volume
from agent.model.snapshot import NotRequested, Snapshot, known_or
from agent.model.volumes import Mount
from agent.sources.host.files import read_file
from agent.sources.host.mount_table import read_mount_table
from agent.sources.source import Source
from agent.sources.source_error import SourceError, cannot_read

_GLOBAL = re.compile(r"(plugins/kubernetes\.io/csi/.+)/globalmount")
_BLOCK = re.compile(
    r"(plugins/kubernetes\.io/csi/volumeDevices)/(?:staging|publish)/([^/]+)(?:/.*)?"
)
_OF_POD = re.compile(r"(pods/([^/]+)/volumes/kubernetes\.io~csi/[^/]+)/mount")
_FLEX = re.compile(r"plugins/kubernetes\.io/flexvolume/([^/]+/[^/]+)/mounts/([^/]+)")
_FLEX_OF_POD = re.compile(r"pods/([^/]+)/volumes/(?!kubernetes\.io~)([^/~]+)~([^/]+)/([^/]+)")
_ANYWHERE = re.compile(r"(/.+)/(?:plugins/kubernetes\.io|pods/[^/]+/volumes)/[^/]+/.+")
_IN_TREE = re.compile(r"plugins/(kubernetes\.io/(?!csi/|flexvolume/)[^/]+)/mounts/(.+)")


@dataclass(frozen=True)
class MountsSource(Source):
    proc: Path
    kubelet_dir: Path | None  # None: --kubelet-dir=off
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
    """Return each mounted volume, once for each mount point; raises SourceError. `kubelet_dir`: on the node, too."""
    plugins = kubelet_dir / "plugins"
    try:
        plugins.stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SourceError(
            f"{plugins} does not exist: check --kubelet-dir, and that it is mounted"
        ) from error
    except OSError as error:
        raise SourceError(cannot_read(plugins, error)) from error
    start = f"{kubelet_dir}/"
    points = [entry.point for entry in read_mount_table(proc)]
    below = [point.removeprefix(start) for point in points if point.startswith(start)]
    # Mounts are listed by their real path.
    if not below and (elsewhere := next(filter(None, map(_ANYWHERE.fullmatch, points)), None)):
        where = f"volumes are mounted below {elsewhere[1]}, not below {kubelet_dir}"
        raise SourceError(f"{where}: set --kubelet-dir to the real path")
    found = (_mount(path, kubelet_dir) for path in below)
    return tuple(dict.fromkeys(filter(None, found)))


def _mount(path: str, kubelet_dir: Path) -> Mount | None:
    if matched := _OF_POD.fullmatch(path):
        return _of_csi(kubelet_dir / matched[1], matched[2])
    if matched := _BLOCK.fullmatch(path):
        return _of_csi(kubelet_dir / matched[1] / matched[2] / "data", "")
    if matched := _GLOBAL.fullmatch(path):
        return _of_csi(kubelet_dir / matched[1], "")
    if matched := _FLEX.fullmatch(path):
        return Mount(f"{matched[1]}/{matched[2]}")
    if matched := _FLEX_OF_POD.fullmatch(path):
        return Mount(f"{matched[2]}/{matched[3]}/{matched[4]}", matched[1])
    if matched := _IN_TREE.fullmatch(path):
        return Mount(f"{matched[1]}/{_id(matched[1], matched[2])}")
    return None


def _id(plugin: str, path: str) -> str:
    """Return the volume id of a path that the plugin derived from it."""
    if plugin == "kubernetes.io/aws-ebs":
        return re.sub("^aws/", "aws://", path)
    return path.replace("-image-", ":", 1) if plugin == "kubernetes.io/rbd" else path


def _of_csi(directory: Path, pod_uid: str) -> Mount | None:
    """Return the volume in the kubelet's file; None: it was unmounted meanwhile."""
    file = directory / "vol_data.json"
    try:
        content, _ = read_file(file)
        tree = json.loads(content)
        return Mount(f"kubernetes.io/csi/{tree['driverName']}^{tree['volumeHandle']}", pod_uid)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SourceError(cannot_read(file, error)) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SourceError(f"{file}: not a volume description of the kubelet ({error!r})") from error
