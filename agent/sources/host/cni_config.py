"""Reads the CNI configuration as the runtimes do.

The first file that libcni accepts (libcni/conf.go) is the default network.
"""

import json
import os
import re
import stat
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from agent.model.node_network import RuntimeStatus
from agent.model.runtime import RuntimeNetwork, WrittenRange
from agent.model.text import escape, truncate
from agent.sources.host.files import names_in, open_directory, read_file
from agent.sources.json_tree import subobject, text_field
from agent.sources.source_error import NotFound, SourceError, read_error

DEFAULT_DIRECTORY: Final = Path("/etc/cni/net.d")
_MAX_DELEGATION: Final = 3  # delegates of delegates: a configuration of Multus may name itself

_HOST_LOCAL: Final = "host-local"
FLANNEL: Final = "flannel"
_ANTREA: Final = "antrea"
_ANTREA_DIR: Final = "/run/antrea/cni/networks"
"""Antrea's agent runs host-local in its own container, where this is /var/lib/cni/networks (in
build/charts/antrea/templates/agent/daemonset.yaml of Antrea)."""
FLANNEL_SUBNET: Final = re.compile(
    r"^FLANNEL_(?:IPV6_)?SUBNET=([0-9a-fA-F:.]+/\d{1,3})$", re.MULTILINE
)
"""The node's subnet in the file that flannel's daemon writes (its `WriteSubnetFile`)."""

_KEYS: Final = (
    "name", "type", "plugins", "enabled", "capabilities", "ipam", "dataDir", "ranges", "subnet",
    "rangeStart", "rangeEnd", "gateway", "delegates", "clusterNetwork", "defaultNetworks",
    "delegate", "subnetFile",
)  # fmt: skip
"""Keys that are read here, in plugins that may spell them differently."""
_SPELLING: Final = {key.casefold(): key for key in _KEYS}

_SUFFIXES: Final = frozenset({".conf", ".conflist", ".json"})
_LIST_SUFFIX: Final = ".conflist"
_PLUGIN_SUFFIX: Final = ".conf"  # of a plugin in a file of its own
PLUGIN_FILES: Final = "nodeleak/plugin-files"
"""A key beside those of the file: whether plugins were in files of their own."""

_JSON_ERRORS: Final = {
    "Expecting value": "expected a value",
    "Expecting ',' delimiter": "expected ',' between values",
    "Expecting ':' delimiter": "expected ':' after a key",
    "Expecting property name enclosed in double quotes": "expected a key in double quotes",
    "Illegal trailing comma before end of object": "expected a key after the comma",
    "Illegal trailing comma before end of array": "expected a value after the comma",
    "Extra data": "expected nothing after the end of the object",
    "Unterminated string starting at": "a text has no closing quote",
    "Invalid control character at": "a text has a line break or a control character",
}
"""Words for those of Python's parser that say how it works."""
_KEY_TYPES: Final = {
    "cniVersion": str,
    "name": str,
    "type": str,
    "capabilities": dict,
    "ipam": dict,
}
"""The keys that libcni itself decodes (its `types.NetConf`)."""
_SWITCHES: Final = ("disableCheck", "loadOnlyInlinedPlugins")

Configuration: TypeAlias = Mapping[str, Any]
"""A network's `name` and `plugins`, or one plugin."""
ReadFiles: TypeAlias = Callable[[], Mapping[str, Configuration]]
"""Returns the configurations of a directory by file name. Called if a delegate is in another file."""


@dataclass(frozen=True)
class CniStatus:
    """What a runtime says about its network, and where its CNI configuration is."""

    status: RuntimeStatus | None = None
    """None: it was not asked."""
    loaded: tuple[Configuration, ...] | None = None
    """The networks in use; None: it does not say."""
    directory: Path | None = None
    """Of the configuration; None: it does not say."""
    default: str = ""
    """The network that it is configured to use; empty: that of the first file."""
    class_directories: tuple[Path, ...] = ()
    """Those of runtime classes that have their own."""
    plugin_directories: tuple[Path, ...] = ()
    """Where the programs are; empty: it does not say."""
    root: Path | None = None
    """Where it keeps images and containers; None: it does not say."""


class NotConfigured(SourceError):
    """The directory does not exist, or has no configuration that libcni accepts."""


class _Refused(Exception):
    """libcni refuses a file. The text says why, in words about the file."""


class ConfigFile(NamedTuple):
    """One file of the directory."""

    name: str
    configuration: Configuration | None
    """None: libcni refuses it."""
    problem: str = ""
    """Why it is refused, in words about the file; empty: it is not."""


def read_files(directory: Path) -> list[ConfigFile]:
    """Return the files that libcni looks at, in the order of the runtimes.

    Raises NotFound if there is no directory, and SourceError.
    """
    files = []
    with open_directory(directory) as handle:
        for name in sorted(names_in(handle, directory)):
            if _is_directory(name, handle) or Path(name).suffix not in _SUFFIXES:
                continue

            try:
                files.append(ConfigFile(name, _read(name, handle, directory)))
            except _Refused as error:
                files.append(ConfigFile(name, None, truncate(error)))
            except RecursionError:
                files.append(ConfigFile(name, None, "is nested too deeply"))
    return files


def accepted(files: Iterable[ConfigFile]) -> dict[str, Configuration]:
    """Return the configurations by file name."""
    return {file.name: file.configuration for file in files if file.configuration is not None}


def read_directory(directory: Path) -> dict[str, Configuration]:
    """Return the configurations by file name, in the order of the runtimes.

    Raises NotConfigured if libcni accepts none, SourceError if a file cannot be read.
    """
    try:
        files = read_files(directory)
    except NotFound as error:
        raise NotConfigured(error) from error

    if configurations := accepted(files):
        return configurations
    if not files:
        raise NotConfigured(f"{directory} has no CNI configuration")
    reason = f"{escape(files[0].name)}: {files[0].problem}"
    raise NotConfigured(f"no file in {directory} is a CNI configuration: {reason}")


def _read(name: str, handle: int, directory: Path) -> Configuration:
    """Return what libcni accepts of a file in an open directory.

    Raises _Refused for anything else, and SourceError if the file cannot be read.
    """
    tree = _read_object(name, handle, directory)
    if not name.endswith(_LIST_SUFFIX):  # it has a single plugin
        if "plugins" in tree and "type" not in tree:
            raise _Refused("is a list of plugins: its name must end with .conflist")
        plugin = _checked_plugin(tree)
        return {"name": plugin.get("name") or name, "plugins": [plugin], PLUGIN_FILES: False}

    # The keys of the list itself count as they are.
    network = tree.get("name")
    if not isinstance(network, str):
        raise _Refused(f"its network has {'a name that is not text' if network else 'no name'}")
    if not isinstance(tree.get("cniVersion", ""), str):
        raise _Refused("its cniVersion is not text")
    switches = {key: _is_true(tree, key) for key in _SWITCHES}

    inlined = tree.get("plugins")
    if "plugins" in tree and not (isinstance(inlined, list) and inlined):
        raise _Refused("has no plugins")
    plugins = [
        _checked_plugin(plugin, f"plugin {number} ")
        for number, plugin in enumerate(inlined or (), 1)
    ]

    separate: list[Configuration] = []
    if not switches["loadOnlyInlinedPlugins"]:
        separate = _read_plugins(directory, network)
    if not plugins and not separate:
        raise _Refused("has no plugins")
    return {**tree, "plugins": [*plugins, *separate], PLUGIN_FILES: bool(separate)}


def _read_plugins(directory: Path, network: str) -> list[Configuration]:
    """Return the plugins of a network in files of their own: `NETWORK/*.conf`, since libcni 1.3.

    An older one takes no notice of them. Raises as `_read`.
    """
    if not is_part_of_path(network, ""):
        return []
    path = directory / network
    try:
        with open_directory(path) as handle:
            names = [name for name in names_in(handle, path) if Path(name).suffix == _PLUGIN_SUFFIX]
            files = [name for name in sorted(names) if not _is_directory(name, handle)]
            return [_read_plugin(name, handle, path) for name in files]
    except NotFound:
        return []


def _is_directory(name: str, handle: int) -> bool:
    return stat.S_ISDIR(os.lstat(name, dir_fd=handle).st_mode)


def _read_plugin(name: str, handle: int, directory: Path) -> Configuration:
    """Return the plugin of a file of its own; raises as `_read`."""
    try:
        return _checked_plugin(_read_object(name, handle, directory))
    except _Refused as error:
        raise _Refused(f"its {directory.name}/{escape(name)} {error}") from error


def _read_object(name: str, handle: int, directory: Path) -> Configuration:
    """Return a file of an open directory; raises SourceError, and _Refused for no JSON object."""
    try:
        content, _ = read_file(name, handle, follow=True)  # as libcni follows links
    except OSError as error:
        raise read_error(directory / escape(name), error) from error
    except SourceError as error:
        raise _Refused("is not a regular file, or is larger than 1 MiB") from error

    tree = _parse(content.decode(errors="replace"))  # as Go's parser does
    if not isinstance(tree, dict):
        raise _Refused("is not a JSON object")
    return tree


def _parse(text: str) -> Any:
    """Return what JSON says; raises _Refused in words about the file."""
    if not text.strip():
        raise _Refused("is empty" if not text else "has nothing but blank space")

    try:
        return json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        content = text.rstrip()
        if error.pos >= len(content):
            line = content.count("\n") + 1
            raise _Refused(f"line {line}: the file ends too early") from error
        reason = _JSON_ERRORS.get(error.msg, error.msg)
        raise _Refused(f"line {error.lineno}, column {error.colno}: {reason}") from error


def _refuse(constant: str) -> None:
    raise _Refused(f"{constant} is not a JSON value")


def _checked_plugin(tree: Any, which: str = "") -> Configuration:
    """Return a plugin that libcni accepts; raises _Refused.

    `which`: the start of the reason; empty: it is the only one of its file.
    """
    plugin = respelled(tree)
    if not isinstance(plugin, dict):
        raise _Refused(f"{which}is not an object")

    for key, kind in _KEY_TYPES.items():
        if not isinstance(plugin.get(key) or kind(), kind):
            raise _Refused(f"{which}has a wrong value of {key}")
    if not plugin.get("type"):
        raise _Refused(f"{which}has no type")
    return plugin


def _is_true(tree: Configuration, key: str) -> bool:
    """Return whether a switch of a list is on, also written as text; raises _Refused."""
    text = str(tree.get(key, False)).lower()
    if text not in {"true", "false"}:
        raise _Refused(f"{key} is neither true nor false")
    return text == "true"


def respelled(tree: Any) -> Any:
    """Return a configuration with keys as they are read here: plugins in Go ignore their case.

    Of two spellings the last wins, and libcni sorts the keys before a plugin gets them.
    """
    if isinstance(tree, list):
        return [*map(respelled, tree)]
    if not isinstance(tree, dict):
        return tree
    return {_SPELLING.get(key.casefold(), key): respelled(tree[key]) for key in sorted(tree)}


def default_networks(
    directory: Path, default: str = "", is_usable: Callable[[Configuration], bool] = bool
) -> tuple[RuntimeNetwork, ...]:
    """Return the networks of the configuration of that name, or in the first file that is usable.

    Raises NotConfigured if there is none, and SourceError. `default`: empty for the first file.
    `is_usable`: returns whether the runtime does not skip it for want of a plugin.
    """
    files = read_directory(directory)
    usable = {name: file for name, file in files.items() if is_usable(file)}
    if default:
        configuration = _find_configuration(default, usable)
        if configuration is None:
            network = f"the default network of the runtime, {escape(default)}"
            raise NotConfigured(f"{network}, is in no file of {directory}")
        return tuple(networks_of(configuration, lambda: files))
    if not usable:
        raise NotConfigured(f"each file in {directory} names a plugin that is not installed")

    (file_name, first), *remaining = usable.items()
    networks = tuple(networks_of(first, lambda: files))
    later: list[RuntimeNetwork] = []
    for _, configuration in remaining:
        if configuration["name"] != first["name"]:
            with suppress(SourceError):  # a later file may be broken and unused
                later += networks_of(configuration, lambda: files)

    # With delegates, pods may name other networks: then those in use do not show what is loaded.
    changed_ns = 0
    if any(network.name == first["name"] for network in networks):
        changed_ns = _last_change_ns(directory, file_name, first["name"])
    return tuple(
        replace(network, later=tuple(later), changed_ns=changed_ns) for network in networks
    )


def _last_change_ns(directory: Path, name: str, network: str) -> int:
    """Return the last change of a file, of its directory, or of plugin files: ns, Unix time.

    Raises SourceError. The file's ctime counts, because `cp -p` keeps its mtime.
    """
    plugins = directory / network
    try:
        changes = [directory.stat().st_mtime_ns, (directory / name).stat().st_ctime_ns]
        plugin_changes = [file.stat().st_ctime_ns for file in plugins.glob(f"*{_PLUGIN_SUFFIX}")]
        if plugin_changes:
            changes += [*plugin_changes, plugins.stat().st_mtime_ns]
    except OSError as error:
        raise read_error(directory / escape(name), error) from error
    return max(changes)


def loaded_networks(loaded: Iterable[Configuration], directory: Path) -> tuple[RuntimeNetwork, ...]:
    """Return the networks that a runtime has loaded from a directory; raises SourceError."""
    files = partial(read_directory, directory)
    networks = (networks_of(configuration, files) for configuration in loaded)
    return tuple(chain.from_iterable(networks))


def networks_of(configuration: Configuration, read: ReadFiles) -> Iterator[RuntimeNetwork]:
    """Yield the networks of a configuration, one for each directory of host-local.

    Raises SourceError.
    """
    has_files = bool(configuration.get(PLUGIN_FILES))

    for network in _delegated_networks(configuration, read):
        yield replace(network, plugin_files=has_files)


def _delegated_networks(
    configuration: Configuration, read: ReadFiles, depth: int = 0, *, forwards: bool = False
) -> Iterator[RuntimeNetwork]:
    """Yield the networks of a configuration, or of its delegates.

    A plugin such as Multus gives pods the networks of its delegates, which may be in other files.
    `depth`: of the delegation. `forwards`: whether a plugin above is told of host ports.
    """
    name = configuration.get("name")
    try:
        plugins = list(_enabled_plugins(configuration))
        delegates: list[Configuration] = []
        for plugin in plugins:
            capabilities = subobject(plugin, "capabilities")
            forwards |= plugin["type"] == "portmap" or "portMappings" in capabilities
            delegates += _delegates(plugin, read)

        if not delegates or depth >= _MAX_DELEGATION:
            yield from _own_networks(str(name), plugins, forwards=forwards)
            return
        for delegate in delegates:
            named = {"name": name, **delegate}
            yield from _delegated_networks(named, read, depth + 1, forwards=forwards)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        where = f"the CNI configuration of network {truncate(repr(name))}"
        raise SourceError(f"cannot parse {where}: {truncate(repr(error))}") from error


def all_plugins(
    configuration: Configuration, read: ReadFiles, depth: int = 0
) -> Iterator[Configuration]:
    """Yield the plugins of a configuration, and those of its delegates.

    Raises ValueError, KeyError, TypeError and AttributeError. `depth`: of the delegation.
    """
    for plugin in _enabled_plugins(configuration):
        yield plugin
        if depth < _MAX_DELEGATION:
            for delegate in _delegates(plugin, read):
                yield from all_plugins(delegate, read, depth + 1)


def _enabled_plugins(configuration: Configuration) -> Iterator[Configuration]:
    """Yield the plugins of a chain; a delegate may be a plugin itself."""
    plugins = configuration.get("plugins") or [configuration]
    return (plugin for plugin in plugins if not is_disabled(plugin))


def is_disabled(plugin: Configuration) -> bool:
    """Return whether a plugin of a chain does nothing, and neither does its `ipam`."""
    return str(plugin.get("enabled", "")).lower() == "false"  # EKS writes a string


def _delegates(plugin: Configuration, read: ReadFiles) -> Sequence[Configuration]:
    """Return the delegates of a plugin; none if it has none. Raises ValueError and KeyError."""
    primary = plugin.get("clusterNetwork")
    if not primary:
        delegates: Sequence[Configuration] = plugin.get("delegates") or ()
        if not delegates and str(plugin["type"]).startswith("multus"):
            raise ValueError(
                "Multus has its delegates elsewhere: name their networks with --network"
            )
        return delegates

    configurations = read()
    found = _find_configuration(primary, configurations)
    if found is None:
        raise ValueError(f"clusterNetwork {primary} is in no file: name the network with --network")
    secondary = (
        _find_configuration(name, configurations) for name in plugin.get("defaultNetworks") or ()
    )
    return [found, *filter(None, secondary)]


def _find_configuration(network: str, files: Mapping[str, Configuration]) -> Configuration | None:
    """Return the configuration of a network's name or of a path.

    Only the file name of a path is compared: Multus' root differs.
    """
    if "/" in network:
        return files.get(network.rpartition("/")[2])
    return next((file for file in files.values() if file["name"] == network), None)


def _own_networks(
    name: str, plugins: Sequence[Configuration], *, forwards: bool
) -> Iterator[RuntimeNetwork]:
    """Yield a network for each `dataDir` of host-local in a chain; without host-local, one."""
    types = tuple(str(plugin["type"]) for plugin in plugins)
    ipams = [ipam for ipam in map(_ipam, plugins) if ipam]
    ranges: defaultdict[str, list[tuple[WrittenRange, ...]]] = defaultdict(list)
    for ipam in ipams:
        if ipam.get("type") == _HOST_LOCAL:
            ranges[text_field(ipam, "dataDir")] += ranges_of(ipam)

    ipam_type = _HOST_LOCAL
    if not ranges:
        ipam_type = text_field(ipams[0], "type") if ipams else ""
        ranges[""] = []
    for data_dir, sets in ranges.items():
        if not is_part_of_path(name, data_dir):
            raise ValueError(f"network {name!r} in {data_dir!r}")
        yield RuntimeNetwork(name, types, ipam_type, data_dir, tuple(sets), forwards_ports=forwards)


def _ipam(plugin: Configuration) -> Configuration:
    """Return the `ipam` that a plugin uses; empty: it has none."""
    ipam = subobject(plugin, "ipam")
    if plugin["type"] == _ANTREA and ipam:
        return {"dataDir": _ANTREA_DIR, **ipam}
    if plugin["type"] != FLANNEL:
        return ipam
    # Whatever ranges are written, flannel puts the node's subnet in their place.
    return {"type": ipam.get("type") or _HOST_LOCAL, "dataDir": ipam.get("dataDir")}


def is_part_of_path(name: str, data_dir: str) -> bool:
    """Return whether both can be part of a path: without NUL and halves of surrogate pairs."""
    is_name = "/" not in name and name.strip(".") != ""
    is_absolute = not data_dir or data_dir.startswith("/")
    return is_name and is_absolute and (name + data_dir).isprintable()


def ranges_of(ipam: Configuration) -> tuple[tuple[WrittenRange, ...], ...]:
    """Return the sets of ranges of host-local's configuration.

    Raises KeyError, TypeError or AttributeError.
    """
    # The older single range stands beside the sets, and comes first.
    sets = [[ipam]] if ipam.get("subnet") else []
    sets += ipam.get("ranges") or []
    return tuple(tuple(map(_range, ranges)) for ranges in sets)


def _range(tree: Configuration) -> WrittenRange:
    return WrittenRange(
        subnet=str(tree["subnet"]),
        first=text_field(tree, "rangeStart"),
        last=text_field(tree, "rangeEnd"),
        gateway=text_field(tree, "gateway"),
    )


def with_flannel_ranges(
    networks: Iterable[RuntimeNetwork], run_dir: Path
) -> tuple[RuntimeNetwork, ...]:
    """Return the networks with flannel's ranges, which its daemon writes into a file of its own.

    Without the file they stay as they are: a result in libcni's cache has the range too. `run_dir`:
    the node's /run.
    """
    try:
        content, _ = read_file(run_dir / "flannel/subnet.env")
    except (OSError, SourceError):
        return tuple(networks)
    return with_subnets(networks, FLANNEL_SUBNET.findall(content.decode(errors="replace")))


def with_subnets(
    networks: Iterable[RuntimeNetwork], subnets: Iterable[str]
) -> tuple[RuntimeNetwork, ...]:
    """Return the networks with the node's subnets as the ranges of flannel."""
    ranges = tuple((WrittenRange(subnet),) for subnet in subnets)
    completed = []
    for network in networks:
        needs_ranges = FLANNEL in network.plugins and not network.ranges
        completed.append(replace(network, ranges=ranges) if needs_ranges else network)
    return tuple(completed)
