"""The mounted volumes of those that have to be attached, by the node's mount table. Read only if one is missing.

The path below the kubelet's directory identifies the volume; for CSI, the file `vol_data.json` beside it does.
"""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from agent.model.volumes import Mount
from agent.sources.host.mount_table import read_mount_table
from agent.sources.kube import volume_names
from agent.sources.os_error import cannot_read
from agent.sources.source_error import SourceError

_LARGEST: Final = 8 * 1024
"""Bytes; CSI allows a volume's ID 128."""
_GLOBAL = re.compile(r"(plugins/kubernetes\.io/csi/.+)/globalmount")
_BLOCK = re.compile(r"(plugins/kubernetes\.io/csi/volumeDevices)/(?:staging|publish)/([^/]+)(?:/.*)?")
_OF_POD = re.compile(r"(pods/([^/]+)/volumes/kubernetes\.io~csi/[^/]+)/mount")
_FLEX = re.compile(r"plugins/kubernetes\.io/flexvolume/([^/]+/[^/]+)/mounts/([^/]+)")
_FLEX_OF_POD = re.compile(r"pods/([^/]+)/volumes/(?!kubernetes\.io~)([^/~]+)~([^/]+)/([^/]+)")
_ANYWHERE = re.compile(r"(/.+)/(?:plugins/kubernetes\.io|pods/[^/]+/volumes)/[^/]+/.+")
_IN_TREE = re.compile(r"plugins/(kubernetes\.io/(?!csi/|flexvolume/)[^/]+)/mounts/(.+)")


def read_mounts(proc: Path, kubelet_dir: Path) -> tuple[Mount, ...]:
    """Return each mounted volume, once for each mount point; raises SourceError.

    `kubelet_dir`: where the kubelet keeps its volumes, on the node and for the agent.
    """
    try:
        (kubelet_dir / "plugins").stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        why = f"{kubelet_dir}/plugins does not exist: check --kubelet-dir, and that it is mounted"
        raise SourceError(why) from error
    except OSError as error:
        raise SourceError(cannot_read(error.filename, error)) from error
    start = f"{kubelet_dir}/"
    places = [one.place for one in read_mount_table(proc) if one.place.startswith(start)]
    if not places:
        _check_none_elsewhere((one.place for one in read_mount_table(proc)), kubelet_dir)
    found = (mount for place in places if (mount := _mount(place.removeprefix(start), kubelet_dir)))
    return tuple(dict.fromkeys(found))


def _check_none_elsewhere(places: Iterable[str], kubelet_dir: Path) -> None:
    """Raise SourceError if another directory looks like the kubelet's: mounts are listed by their real path."""
    for matched in filter(None, map(_ANYWHERE.fullmatch, places)):
        raise SourceError(
            f"volumes are mounted below {matched[1]}, not below {kubelet_dir}: set --kubelet-dir to the real path"
        )


def _mount(place: str, kubelet_dir: Path) -> Mount | None:
    if matched := _OF_POD.fullmatch(place):
        return _of_csi(kubelet_dir / matched[1], matched[2])
    if matched := _BLOCK.fullmatch(place):
        return _of_csi(kubelet_dir / matched[1] / matched[2] / "data", "")
    if matched := _GLOBAL.fullmatch(place):
        return _of_csi(kubelet_dir / matched[1], "")
    if matched := _FLEX.fullmatch(place):
        return Mount(f"{matched[1]}/{matched[2]}")
    if matched := _FLEX_OF_POD.fullmatch(place):
        return Mount(f"{matched[2]}/{matched[3]}/{matched[4]}", matched[1])
    if matched := _IN_TREE.fullmatch(place):
        return Mount(f"{matched[1]}/{_id(matched[1], matched[2])}")
    return None


def _id(plugin: str, path: str) -> str:
    """Return the volume id of a path that the plugin derived from it."""
    match plugin:
        case "kubernetes.io/aws-ebs":
            return re.sub("^aws/", "aws://", path)
        case "kubernetes.io/rbd":
            return path.replace("-image-", ":", 1)
        case _:
            return path


def _of_csi(directory: Path, pod_uid: str) -> Mount | None:
    """Return the volume in the kubelet's file; None: it was unmounted meanwhile."""
    return next((Mount(volume, pod_uid) for volume in _volume_in(directory / "vol_data.json")), None)


def _volume_in(file: Path) -> Iterator[str]:
    try:
        with file.open("rb") as opened:
            tree = json.loads(opened.read(_LARGEST))
        yield volume_names.csi(str(tree["driverName"]), str(tree["volumeHandle"]))
    except FileNotFoundError:
        return
    except OSError as error:
        raise SourceError(cannot_read(file, error)) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SourceError(f"{file}: not a volume description of the kubelet ({error!r})") from error
