"""Reads the CNI configuration as the runtimes do: which networks give pods their addresses. Changes nothing.

The default network is the first file, in lexicographic order, that libcni accepts; it skips the others.
"""

import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from agent.model.runtime import RuntimeNetwork, WrittenRange
from agent.model.text import escape, truncate
from agent.sources.host.directory import names_in
from agent.sources.os_error import cannot_read
from agent.sources.source_error import SourceError

DEFAULT_DIRECTORY: Final = Path("/etc/cni/net.d")
_LARGEST: Final = 1024 * 1024
"""Bytes; a configuration has two thousand."""
_DEEPEST: Final = 3
"""Delegates of delegates: a configuration of Multus may name itself."""
_FLANNEL: Final = "flannel"
_SUFFIXES: Final = frozenset({".conf", ".conflist", ".json"})
_REMEDY: Final = "(it must be mounted; if the runtime reads another directory, set --cni-config-dir)"

Configuration: TypeAlias = Mapping[str, Any]
"""A network's `name` and `plugins`."""


Files: TypeAlias = Callable[[], Mapping[str, Configuration]]
"""Reads a directory; only some plugins need it."""


class CniStatus(NamedTuple):
    """What a runtime says of its networks."""

    loaded: tuple[Configuration, ...] | None = None
    """None: it does not say."""
    directory: Path | None = None
    others: tuple[Path, ...] = ()
    """Directories of runtime classes that have their own."""


class NotConfigured(SourceError):
    """The directory does not exist, or has no configuration."""


def read_directory(directory: Path) -> dict[str, Configuration]:
    """Return the configurations by file name, in the order of the runtimes; raises SourceError if there is none."""
    found: dict[str, Configuration] = {}
    refused: list[str] = []
    for name, content in _contents(directory):
        try:
            found[name] = _parse(name, content)
        except (ValueError, RecursionError) as error:
            refused.append(f"{escape(name)}: {truncate(error)}")
    if refused and not found:
        raise SourceError(f"no file in {directory} is a CNI configuration: {refused[0]}")
    if not found:
        raise NotConfigured(f"{directory} has no CNI configuration {_REMEDY}")
    return found


def _contents(directory: Path) -> Iterator[tuple[str, bytes]]:
    """Yield each file that may be a configuration; raises SourceError."""
    try:
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise NotConfigured(f"{directory} does not exist {_REMEDY}") from error
    except OSError as error:
        raise SourceError(cannot_read(directory, error)) from error
    name = ""
    try:
        for name in sorted(names_in(handle, directory)):
            if Path(name).suffix in _SUFFIXES and (content := _read(handle, name)) is not None:
                yield name, content
    except OSError as error:
        raise SourceError(cannot_read(directory / escape(name), error)) from error
    finally:
        os.close(handle)


def _read(directory: int, name: str) -> bytes | None:
    """Return a file's content, as much as a configuration may have; None for a directory. Raises OSError."""
    handle = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)  # links too, as libcni
    try:
        mode = os.fstat(handle).st_mode
        return None if stat.S_ISDIR(mode) else os.read(handle, _LARGEST) if stat.S_ISREG(mode) else b""
    finally:
        os.close(handle)


def _parse(name: str, content: bytes) -> Configuration:
    """Return what libcni accepts; raises ValueError for anything else."""
    tree = json.loads(content)
    if not isinstance(tree, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 (one kind for all that libcni refuses)
    if not name.endswith(".conflist"):
        tree = {"name": tree.get("name") or name, "plugins": [tree]}
    plugins = tree.get("plugins")
    if not isinstance(tree.get("name"), str) or not isinstance(plugins, list) or not plugins:
        raise ValueError("it has no name or no plugins")
    if not all(isinstance(plugin, dict) and plugin.get("type") for plugin in plugins):
        raise ValueError("a plugin has no type")
    return tree


def default_networks(files: Mapping[str, Configuration]) -> tuple[RuntimeNetwork, ...]:
    """Return the networks of the default configuration, the first one."""
    return tuple(networks_of(next(iter(files.values())), lambda: files))


def networks_of(configuration: Configuration, files: Files, depth: int = 0) -> Iterator[RuntimeNetwork]:
    """Yield the networks of a configuration, one for each directory of host-local; raises SourceError.

    A plugin such as Multus gives pods the networks of its delegates. `files`: where they may be.
    """
    name = configuration.get("name")
    try:
        plugins = [one for one in configuration.get("plugins") or [configuration] if not _is_disabled(one)]
        delegates = [one for plugin in plugins for one in _delegates(plugin, files)]
        if delegates and depth < _DEEPEST:
            for delegate in delegates:
                yield from networks_of({"name": name, **delegate}, files, depth + 1)
        else:
            yield from _own_networks(str(name), plugins)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        where = f"the CNI configuration of network {truncate(repr(name))}"
        raise SourceError(f"cannot parse {where}: {truncate(repr(error))}") from error


def _is_disabled(plugin: Configuration) -> bool:
    return str(plugin.get("enabled", "")).lower() == "false"  # EKS writes a string


def _delegates(plugin: Configuration, read: Files) -> Sequence[Configuration]:
    if not (primary := plugin.get("clusterNetwork")):
        if not plugin.get("delegates") and str(plugin["type"]).startswith("multus"):
            raise ValueError("Multus has its delegates elsewhere: name their networks with --network")
        return plugin.get("delegates") or ()
    files = read()
    if (found := _find(primary, files)) is None:
        raise ValueError(f"clusterNetwork {primary} is in no file: name the network with --network")
    others = (_find(one, files) for one in plugin.get("defaultNetworks") or ())
    return [found, *filter(None, others)]


def _find(network: str, files: Mapping[str, Configuration]) -> Configuration | None:
    """Return a configuration by its network's name or its path, which Multus' daemon may see below another root."""
    if "/" in network:
        return files.get(network.rpartition("/")[2])
    return next((one for one in files.values() if one["name"] == network), None)


def _own_networks(name: str, plugins: Sequence[Configuration]) -> Iterator[RuntimeNetwork]:
    types = tuple(str(plugin["type"]) for plugin in plugins)
    ipams = list(filter(None, map(_ipam, plugins)))
    host_local = [ipam for ipam in ipams if ipam.get("type") == "host-local"]
    directories = dict.fromkeys(_data_dir(ipam) for ipam in host_local)
    for data_dir in directories:
        _check_paths(name, data_dir)
        ranges = chain.from_iterable(_ranges(ipam) for ipam in host_local if _data_dir(ipam) == data_dir)
        yield RuntimeNetwork(name, types, "host-local", data_dir, tuple(ranges))
    if not directories:
        _check_paths(name, "")
        yield RuntimeNetwork(name, types, next((str(ipam.get("type") or "") for ipam in ipams), ""))


def _data_dir(ipam: Configuration) -> str:
    return str(ipam.get("dataDir") or "")


def _ipam(plugin: Configuration) -> Configuration:
    if plugin["type"] != _FLANNEL:
        return plugin.get("ipam") or {}
    # Whatever ranges are written, flannel puts the node's subnet in their place.
    written = plugin.get("ipam") or {}
    return {"type": written.get("type") or "host-local", "dataDir": written.get("dataDir")}


def _check_paths(name: str, data_dir: str) -> None:
    """Raise ValueError unless both can be part of a path, which has no NUL and no half of a surrogate pair."""
    is_part = "/" not in name and name.strip(".") != ""
    if not is_part or not (data_dir or "/").startswith("/") or not (name + data_dir).isprintable():
        raise ValueError(f"network {name!r} in {data_dir!r}")


def _ranges(ipam: Configuration) -> tuple[tuple[WrittenRange, ...], ...]:
    # The older single range stands beside the sets, and comes first.
    sets = [[ipam]] if ipam.get("subnet") else []
    sets += ipam.get("ranges") or []
    return tuple(tuple(map(_range, ranges)) for ranges in sets)


def _range(written: Configuration) -> WrittenRange:
    others = (str(written.get(key) or "") for key in ("rangeStart", "rangeEnd", "gateway"))
    return WrittenRange(str(written["subnet"]), *others)
