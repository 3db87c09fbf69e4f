"""Reads mount tables, and which volumes are mounted. Changes nothing, and needs no capability."""

import json
import os
import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from agent.model.volumes import Mount
from agent.sources.host.files import LARGEST_TABLE, read_file
from agent.sources.source_error import SourceError, cannot_read

_LINE: Final = re.compile(
    r"[^ ]+ [^ ]+ (?P<device>[^ ]+) (?P<root>[^ ]+) (?P<point>[^ ]+) .* - (?P<kind>[^ ]+) .*"
)
"""Of proc_pid_mountinfo(5)."""
_OCTAL: Final = re.compile(r"\\([0-7]{3})")  # how the kernel writes a space, or a line's end
_DELETED: Final = "//deleted"
_PROC: Final = Path("/proc")  # of this process
_LOCAL: Final = re.compile(
    r"ext[234]|xfs|btrfs|bcachefs|f2fs|jfs|zfs|nilfs2|reiserfs|ubifs|jffs2|tmpfs|ramfs|rootfs"
    r"|overlay|aufs|fuse\.fuse-overlayfs|erofs|squashfs"
)
"""Types of file systems that only one node has at a time. Any other may be shared.

`rootfs` is the memory of a node that runs from its initramfs. An image of `erofs` or `squashfs` is
read-only, so that no other node can write reservations there. `virtiofs`, like 9p, is a directory
of the machine that the node's VM runs on, which may give it to other VMs as well.
"""


class _Entry(NamedTuple):
    root: str  # what of its file system is mounted; of a namespace, its kind and inode: `net:[4026532281]`
    point: str  # the mount point, without symbolic links
    kind: str  # the type of the file system
    device: str  # of its file system: `major:minor`


def _read_table(proc: Path, process: int | str = 1) -> tuple[_Entry, ...]:
    """Return every mount; raises SourceError."""
    table = proc / f"{process}/mountinfo"
    try:
        content, _ = read_file(table, follow=True, largest=LARGEST_TABLE)
    except OSError as error:
        raise SourceError(cannot_read(table, error)) from error
    return tuple(
        map(
            _entry, filter(None, map(_LINE.fullmatch, content.decode(errors="replace").split("\n")))
        )
    )


def _entry(line: re.Match[str]) -> _Entry:
    point = _OCTAL.sub(lambda code: chr(int(code[1], 8)), line["point"])
    # A mount outlives the file below it, which then is marked so.
    return _Entry(line["root"], point.removesuffix(_DELETED), line["kind"], line["device"])


def read_namespaces(proc: Path, runtimes: Iterable[int]) -> tuple[str, ...]:
    """Return where network namespaces are mounted, for the first process or for a runtime; raises SourceError."""
    # A runtime may have mounts of its own, as on OpenShift. A mount keeps a namespace, and its addresses, without any
    # process: the kernel in it still answers for them. Below a shared directory, a namespace is listed more than once.
    entries = (entry for process in (1, *runtimes) for entry in _read_table(proc, process))
    mounted = (
        entry.point for entry in entries if entry.kind == "nsfs" and entry.root.startswith("net:[")
    )
    return tuple(dict.fromkeys(mounted))


def shared_storage(path: Path, local: Collection[str]) -> str:
    """Return the type of a directory's file system if other nodes may share it; empty: none do.

    `local`: other types that are this node's own. Raises OSError, SourceError.
    """
    device = path.stat().st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    # A device that no entry has is a subvolume of btrfs.
    kinds = (entry.kind for entry in _read_table(_PROC, "self") if entry.device == name)
    shared = (kind for kind in kinds if kind not in local and not _LOCAL.fullmatch(kind))
    return next(shared, "")


def is_missing_on_node(path: Path, proc: Path) -> bool:
    """Return whether a path that is missing here is known to be missing on the node too, and not only not mounted."""
    # That is known if this process has the mounts of the node's first process, or if a directory above is mounted, and
    # the node has not removed that directory since.
    with suppress(OSError):  # only with CAP_SYS_PTRACE, or on the node itself
        if (proc / "1/ns/mnt").samefile(_PROC / "self/ns/mnt"):
            return True
    try:
        roots = {entry.point: entry.root for entry in _read_table(_PROC, "self")}
    except SourceError:
        return False
    nearest = next((str(parent) for parent in path.parents if str(parent) in roots), "/")
    return nearest != "/" and not roots[nearest].endswith(_DELETED)


# The mounted volumes of those that have to be attached. Read only if a volume is missing. The path below the kubelet's
# directory identifies the volume; for CSI, the file `vol_data.json` beside it does.

_GLOBAL = re.compile(r"(plugins/kubernetes\.io/csi/.+)/globalmount")
_BLOCK = re.compile(
    r"(plugins/kubernetes\.io/csi/volumeDevices)/(?:staging|publish)/([^/]+)(?:/.*)?"
)
_OF_POD = re.compile(r"(pods/([^/]+)/volumes/kubernetes\.io~csi/[^/]+)/mount")
_FLEX = re.compile(r"plugins/kubernetes\.io/flexvolume/([^/]+/[^/]+)/mounts/([^/]+)")
_FLEX_OF_POD = re.compile(r"pods/([^/]+)/volumes/(?!kubernetes\.io~)([^/~]+)~([^/]+)/([^/]+)")
_ANYWHERE = re.compile(r"(/.+)/(?:plugins/kubernetes\.io|pods/[^/]+/volumes)/[^/]+/.+")
_IN_TREE = re.compile(r"plugins/(kubernetes\.io/(?!csi/|flexvolume/)[^/]+)/mounts/(.+)")


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
    points = [entry.point for entry in _read_table(proc)]
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
