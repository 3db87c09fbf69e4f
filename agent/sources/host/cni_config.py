"""Reads the CNI configuration as the runtimes do: the first file that libcni accepts is the default network."""

import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from agent.model.runtime import RuntimeNetwork, WrittenRange
from agent.model.text import escape, truncate
from agent.sources.host.files import names_in, open_directory, read_file
from agent.sources.source_error import NotFound, SourceError, cannot_read

DEFAULT_DIRECTORY: Final = Path("/etc/cni/net.d")
_DEEPEST: Final = 3  # delegates of delegates: a configuration of Multus may name itself
_FLANNEL: Final = "flannel"
_FLANNEL_SUBNET: Final = re.compile(
    r"^FLANNEL_(?:IPV6_)?SUBNET=([0-9a-fA-F:.]+/\d{1,3})$", re.MULTILINE
)
_KEYS: Final = (
    "name", "type", "plugins", "enabled", "capabilities", "ipam", "dataDir", "ranges", "subnet", "rangeStart",
    "rangeEnd", "gateway", "delegates", "clusterNetwork", "defaultNetworks",
)  # fmt: skip
_SPELLING: Final = {key.casefold(): key for key in _KEYS}
_SUFFIXES: Final = frozenset({".conf", ".conflist", ".json"})
_LIST: Final = ".conflist"
_PLUGIN: Final = ".conf"  # of a plugin in a file of its own
PLUGIN_FILES: Final = "nodeleak/plugin-files"
"""A key beside those of the file: whether plugins were in files of their own."""
_REMEDY: Final = (
    "(it must be mounted; if the runtime reads another directory, set --cni-config-dir)"
)

Configuration: TypeAlias = Mapping[str, Any]  # a network's `name` and `plugins`
Files: TypeAlias = Callable[
    [], Mapping[str, Configuration]
]  # reads a directory; only some plugins need it


class CniStatus(NamedTuple):
    loaded: tuple[Configuration, ...] | None = None  # None: it does not say
    directory: Path | None = None
    default: str = ""  # the network that it is configured to use; empty: that of the first file
    others: tuple[Path, ...] = ()  # directories of runtime classes that have their own


class NotConfigured(SourceError):
    """The directory does not exist, or has no configuration."""


def read_directory(directory: Path) -> dict[str, Configuration]:
    """Return the configurations by file name, in the order of the runtimes; raises SourceError if there is none."""
    found: dict[str, Configuration] = {}
    refused: list[str] = []
    try:
        with open_directory(directory) as handle:
            for name in sorted(names_in(handle, directory)):
                if Path(name).suffix in _SUFFIXES:
                    try:
                        found[name] = _read(name, handle, directory)
                    except (ValueError, RecursionError) as error:
                        refused.append(f"{escape(name)}: {truncate(error)}")
    except NotFound as error:
        raise NotConfigured(f"{error} {_REMEDY}") from error
    if refused and not found:
        raise SourceError(f"no file in {directory} is a CNI configuration: {refused[0]}")
    if not found:
        raise NotConfigured(f"{directory} has no CNI configuration {_REMEDY}")
    return found


def _read(name: str, handle: int, directory: Path) -> Configuration:
    """Return what libcni accepts; raises ValueError for anything else, and SourceError if it cannot be read."""
    tree = _read_object(name, handle, directory)
    if not name.endswith(_LIST):  # it is for a single plugin
        plugin = _checked_plugin(tree)
        return {"name": plugin.get("name") or name, "plugins": [plugin], PLUGIN_FILES: False}
    # The keys of the list itself count as they are.
    network = tree.get("name")
    if not isinstance(network, str):
        raise ValueError("it has no name")  # noqa: TRY004 (one kind for all that libcni refuses)
    inlined = tree.get("plugins")
    if "plugins" in tree and not (isinstance(inlined, list) and inlined):
        raise ValueError("its plugins are no list, or an empty one")
    plugins = [_checked_plugin(plugin) for plugin in inlined or ()]
    beside = [] if _is_true(tree, "loadOnlyInlinedPlugins") else _read_plugins(directory, network)
    if not plugins and not beside:
        raise ValueError("it has no plugins")
    return {**tree, "plugins": [*plugins, *beside], PLUGIN_FILES: bool(beside)}


def _read_plugins(directory: Path, network: str) -> list[Configuration]:
    """Return the plugins of a network in files of their own: `NETWORK/*.conf`, since libcni 1.3.

    An older one takes no notice of them. Raises as `_read`.
    """
    if not is_part_of_path(network, ""):
        return []
    above = directory / network
    try:
        with open_directory(above) as handle:
            names = sorted(name for name in names_in(handle, above) if Path(name).suffix == _PLUGIN)
            return [
                _checked_plugin(_read_object(name, handle, above))
                for name in names
                if not stat.S_ISDIR(os.lstat(name, dir_fd=handle).st_mode)
            ]
    except NotFound:
        return []


def _read_object(name: str, handle: int, directory: Path) -> Configuration:
    """Return a file of an open directory; raises SourceError, and ValueError for no JSON object."""
    try:
        content, _ = read_file(name, handle, follow=True)  # as libcni follows links
    except OSError as error:
        raise SourceError(cannot_read(directory / escape(name), error)) from error
    except SourceError as error:
        raise ValueError(error) from error
    tree = json.loads(content)
    if not isinstance(tree, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 (one kind for all that libcni refuses)
    return tree


def _checked_plugin(tree: Any) -> Configuration:
    plugin = respelled(tree)
    if not isinstance(plugin, dict) or not plugin.get("type"):
        raise ValueError("a plugin has no type")
    return plugin


def _is_true(tree: Configuration, key: str) -> bool:
    """Return a switch of a list, which libcni also takes as text; raises ValueError."""
    written = str(tree.get(key, False)).lower()
    if written not in {"true", "false"}:
        raise ValueError(f"{key} is neither true nor false")
    return written == "true"


def respelled(tree: Any) -> Any:
    """Return a plugin's configuration with its keys as they are read here: plugins in Go ignore the case of keys.

    Of two spellings the last wins, and libcni sorts the keys before a plugin gets them.
    """
    if isinstance(tree, list):
        return [*map(respelled, tree)]
    if not isinstance(tree, dict):
        return tree
    return {_SPELLING.get(key.casefold(), key): respelled(tree[key]) for key in sorted(tree)}


def default_networks(directory: Path, default: str = "") -> tuple[RuntimeNetwork, ...]:
    """Return the networks of the default configuration: of that name, or in the first file. Raises SourceError."""
    files = read_directory(directory)
    if default:
        if (named := _find(default, files)) is None:
            raise SourceError(
                f"the default network of the runtime, {escape(default)}, is in no file of {directory}"
            )
        return tuple(networks_of(named, lambda: files))
    (name, first), *others = files.items()
    networks, later = tuple(networks_of(first, lambda: files)), list[RuntimeNetwork]()
    for _, file in others:
        with suppress(SourceError):  # no pod needs it, perhaps
            later += (
                network
                for network in networks_of(file, lambda: files)
                if file["name"] != first["name"]
            )
    # A pod may name another network than the delegates.
    is_its_own = first["name"] in {network.name for network in networks}
    changed = _changed(directory, name, first["name"]) if is_its_own else 0
    return tuple(replace(network, later=tuple(later), changed_ns=changed) for network in networks)


def _changed(directory: Path, name: str, network: str) -> int:
    """Return when this file became the first, or was written, whatever its own time says (`cp -p`)."""
    plugins = directory / network
    try:
        files = [directory / name, *plugins.glob(f"*{_PLUGIN}")]
        changes = [directory.stat().st_mtime_ns, *(file.stat().st_ctime_ns for file in files)]
        return max(*changes, plugins.stat().st_mtime_ns if files[1:] else 0)
    except OSError as error:
        raise SourceError(cannot_read(directory / escape(name), error)) from error


def loaded_networks(loaded: Iterable[Configuration], directory: Path) -> tuple[RuntimeNetwork, ...]:
    """Return the networks that a runtime has loaded from a directory; raises SourceError."""
    read = partial(read_directory, directory)
    found = tuple(chain.from_iterable(networks_of(network, read) for network in loaded))
    return found or default_networks(directory)  # it cannot read the first file, perhaps


def networks_of(configuration: Configuration, files: Files) -> Iterator[RuntimeNetwork]:
    """Yield the networks of a configuration, one for each directory of host-local.

    Raises SourceError.
    """
    has_files = bool(configuration.get(PLUGIN_FILES))
    for network in _networks_of(configuration, files):
        yield replace(network, plugin_files=has_files)


def _networks_of(
    configuration: Configuration, files: Files, depth: int = 0, *, forwards: bool = False
) -> Iterator[RuntimeNetwork]:
    # A plugin such as Multus gives pods the networks of its delegates, which may be in the files.
    # `forwards`: it, or a plugin beside it, is told of host ports.
    name = configuration.get("name")
    try:
        plugins = [
            plugin
            for plugin in configuration.get("plugins") or [configuration]
            if not is_disabled(plugin)
        ]
        forwards = any([forwards, *map(_forwards_ports, plugins)])
        delegates = [delegate for plugin in plugins for delegate in _delegates(plugin, files)]
        if delegates and depth < _DEEPEST:
            for delegate in delegates:
                yield from _networks_of(
                    {"name": name, **delegate}, files, depth + 1, forwards=forwards
                )
        else:
            yield from _own_networks(str(name), plugins, forwards=forwards)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        where = f"the CNI configuration of network {truncate(repr(name))}"
        raise SourceError(f"cannot parse {where}: {truncate(repr(error))}") from error


def is_disabled(plugin: Configuration) -> bool:
    """Return whether a plugin of a chain does nothing, and neither does its `ipam`."""
    return str(plugin.get("enabled", "")).lower() == "false"  # EKS writes a string


def _forwards_ports(plugin: Configuration) -> bool:
    return plugin["type"] == "portmap" or "portMappings" in (plugin.get("capabilities") or {})


def _delegates(plugin: Configuration, read: Files) -> Sequence[Configuration]:
    if not (primary := plugin.get("clusterNetwork")):
        if not plugin.get("delegates") and str(plugin["type"]).startswith("multus"):
            raise ValueError(
                "Multus has its delegates elsewhere: name their networks with --network"
            )
        return plugin.get("delegates") or ()
    files = read()
    if (found := _find(primary, files)) is None:
        raise ValueError(f"clusterNetwork {primary} is in no file: name the network with --network")
    others = (_find(network, files) for network in plugin.get("defaultNetworks") or ())
    return [found, *filter(None, others)]


def _find(network: str, files: Mapping[str, Configuration]) -> Configuration | None:
    """Return a configuration by its network's name or its path, which Multus' daemon may see below another root."""
    if "/" in network:
        return files.get(network.rpartition("/")[2])
    return next((file for file in files.values() if file["name"] == network), None)


def _own_networks(
    name: str, plugins: Sequence[Configuration], *, forwards: bool
) -> Iterator[RuntimeNetwork]:
    types = tuple(str(plugin["type"]) for plugin in plugins)
    ipams = list(filter(None, map(_ipam, plugins)))
    ranges: dict[str, list[tuple[WrittenRange, ...]]] = {}
    for ipam in ipams:
        if ipam.get("type") == "host-local":
            ranges.setdefault(str(ipam.get("dataDir") or ""), []).extend(ranges_of(ipam))
    kind = "host-local" if ranges else str(next(iter(ipams), {}).get("type") or "")
    for data_dir, sets in (ranges or {"": []}).items():
        if not is_part_of_path(name, data_dir):
            raise ValueError(f"network {name!r} in {data_dir!r}")
        yield RuntimeNetwork(name, types, kind, data_dir, tuple(sets), forwards_ports=forwards)


def _ipam(plugin: Configuration) -> Configuration:
    if plugin["type"] != _FLANNEL:
        return plugin.get("ipam") or {}
    # Whatever ranges are written, flannel puts the node's subnet in their place.
    written = plugin.get("ipam") or {}
    return {"type": written.get("type") or "host-local", "dataDir": written.get("dataDir")}


def is_part_of_path(name: str, data_dir: str) -> bool:
    """Return whether both can be part of a path, which has no NUL and no half of a surrogate pair."""
    is_part = "/" not in name and name.strip(".") != ""
    return is_part and (data_dir or "/").startswith("/") and (name + data_dir).isprintable()


def ranges_of(ipam: Configuration) -> tuple[tuple[WrittenRange, ...], ...]:
    """Return the sets of ranges of host-local's configuration; raises KeyError, TypeError or AttributeError."""
    # The older single range stands beside the sets, and comes first.
    sets = [[ipam]] if ipam.get("subnet") else []
    sets += ipam.get("ranges") or []
    return tuple(tuple(map(_range, ranges)) for ranges in sets)


def _range(written: Configuration) -> WrittenRange:
    others = (str(written.get(key) or "") for key in ("rangeStart", "rangeEnd", "gateway"))
    return WrittenRange(str(written["subnet"]), *others)


def with_subnet(networks: Iterable[RuntimeNetwork], run_dir: Path) -> tuple[RuntimeNetwork, ...]:
    """Complete the networks of flannel: its daemon wrote the node's subnet in a file of its own."""
    # Without the file they stay as they are: a result in libcni's cache has the range too.
    try:
        content, _ = read_file(run_dir / "flannel/subnet.env")
    except (OSError, SourceError):
        content = b""
    ranges = tuple(
        (WrittenRange(subnet),)
        for subnet in _FLANNEL_SUBNET.findall(content.decode(errors="replace"))
    )
    return tuple(
        replace(network, ranges=network.ranges or ranges)
        if _FLANNEL in network.plugins
        else network
        for network in networks
    )
