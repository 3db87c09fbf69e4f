"""Reads libcni's cache: a sandbox's pod and network namespace, and a network's ranges. Read-only.

Two places (`/var/lib/cni/cache/results` of dockershim and cri-dockerd, `/var/lib/cni/results` of
others) and two formats (libcni/api.go): a bare result (libcni < 0.8), and `cniCacheV1` with the
configuration and the CNI arguments. Whether an entry exists says nothing about an address being in
use; whether the namespace that it names is mounted does.
"""

import base64
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import ip_address, ip_interface
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from agent.model.assessment import KUBENET
from agent.model.ranges import RangeSets, subnet_range
from agent.model.remedy import Remedy
from agent.model.snapshot import (
    CniResult,
    Damage,
    DamagedResult,
    PortMapping,
    Reservation,
    Snapshot,
)
from agent.sources.host.cni_config import is_disabled, ranges_of, respelled
from agent.sources.host.files import names_in, open_directory, read_file
from agent.sources.json_tree import text_field
from agent.sources.source import Source, WithFields
from agent.sources.source_error import MALFORMED, NotFound, SourceError, none_exists

_LOOPBACK: Final = "lo"
"""The interface that has no address of the network."""
LARGEST: Final = 4 * 1024 * 1024
"""Bytes: CRI-O adds a pod's annotations, 256 KiB that Go may escape to six times."""
_NAME: Final = re.compile(r"(?P<network>.+)-(?P<id>[0-9a-f]{64})-(?P<ifname>[^/]{1,15})")
"""Names of networks and interfaces may have dashes. An interface's name is too short to have an id
in it (IFNAMSIZ)."""

_CACHE_KIND: Final = "cniCacheV1"
_DELEGATES: Final = frozenset({"delegates", "clusterNetwork"})
"""Keys of a plugin (Multus) that calls other networks' plugins: its result does not say where an
address is from."""
_DELETED_BY_ID: Final = ("bridge", "ptp", "macvlan", "ipvlan", "portmap", "bandwidth", "tuning")
"""Plugins whose DEL finds what to delete by the container's ID, or in its namespace. That of
`firewall` deletes the rules of the addresses in the result, whoever has them by then."""
_POD_CIDR: Final = '"usePodCidr'
"""Calico's, in place of a subnet; with `IPv6` behind it for the other family."""

_Version: TypeAlias = tuple[str, int, int, int]
"""The name, inode, modification time and size of a file."""
_Parsed: TypeAlias = CniResult | DamagedResult | None
"""None: the content does not belong to the file's name, or is of a plugin that delegates."""


class ResultFile(NamedTuple):
    """A file of the cache, by what its name says."""

    network: str
    container_id: str
    ifname: str

    @property
    def name(self) -> str:
        return f"{self.network}-{self.container_id}-{self.ifname}"


@dataclass(frozen=True)
class CniResultsSource(Source):
    results: "CniResults"
    name = "cni_results"

    def read(self, _: Snapshot) -> WithFields:
        """Return what is cached, and the damaged files; raises SourceError."""
        results = self.results.read()
        return WithFields(results, {"damaged_results": self.results.damaged})


class _Configured(NamedTuple):
    """What the configuration in a result says of its network."""

    delegates: bool
    """Whether it only calls other networks' plugins."""
    ranges: RangeSets
    data_dir: str
    uses_pod_cidr: bool
    plugin: str
    """The one that has an IPAM."""
    ports: bool
    """Whether a plugin forwards ports."""


@dataclass
class CniResults:
    """The cache. Each file is parsed once: libcni writes it once, and there is one for each pod."""

    directories: Sequence[Path]
    is_missing: Callable[[Path], bool] = lambda _: False
    """Returns whether a path that is missing here is known not to exist on the node."""
    damaged: tuple[DamagedResult, ...] = ()
    """The files of the last reading that have no result."""
    _parsed: dict[_Version, _Parsed] = field(default_factory=dict)

    def read(self) -> tuple[CniResult, ...]:
        """Return what is cached of all networks; raises SourceError.

        NotFound if no directory exists, unless that is known to be so on the node.
        """
        # The networks that are not checked show where pods have their addresses from instead.
        parsed: dict[_Version, _Parsed] = {}
        missing = []
        self.damaged = ()
        for path in self.directories:
            try:
                # An unreadable file may name a mounted namespace: it makes all of them unavailable.
                with open_directory(path) as directory:
                    for name in names_in(directory, path):
                        self._read_file(name, directory, parsed)
            except NotFound:
                missing.append(path)

        has_none = len(missing) == len(self.directories)
        if has_none and not all(map(self.is_missing, missing)):
            raise none_exists(missing, Remedy("check --cni-cache-dir"))

        self._parsed = parsed
        results = parsed.values()
        self.damaged = tuple(result for result in results if isinstance(result, DamagedResult))
        return tuple(result for result in results if isinstance(result, CniResult))

    def _read_file(self, name: str, directory: int, parsed: dict[_Version, _Parsed]) -> None:
        """Add a file to `parsed`, if it is a result and still exists. Raises OSError."""
        parts = _NAME.fullmatch(name)
        if parts is None or parts["ifname"] == _LOOPBACK:
            return
        file = ResultFile(parts["network"], parts["id"], parts["ifname"])

        try:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            version = (name, status.st_ino, status.st_mtime_ns, status.st_size)
            if version in self._parsed:
                parsed[version] = self._parsed[version]
            elif stat.S_ISREG(status.st_mode):
                content, mtime_ns = read_file(name, directory, limit=LARGEST)
                parsed[version] = _parse(content, file, mtime_ns)
        except FileNotFoundError:
            return
        except SourceError:
            parsed[version] = DamagedResult(*file, Damage.TOO_LARGE)


def _parse(content: bytes, file: ResultFile, mtime_ns: int) -> _Parsed:
    """Parse one cache file. Never raises, whatever the bytes."""
    try:
        tree = json.loads(content)
        return _result(tree, file, mtime_ns) if isinstance(tree, dict) else None
    except (ValueError, RecursionError):
        return DamagedResult(*file, Damage.MALFORMED if content else Damage.EMPTY)


def _result(tree: Mapping[str, Any], file: ResultFile, mtime_ns: int) -> CniResult | None:
    """Return the result; None: it is of another sandbox, or of a plugin that delegates."""
    is_bare = tree.get("kind") != _CACHE_KIND
    if is_bare:
        tree = {"networkName": file.network, "containerId": file.container_id, "result": tree}
    if (tree.get("networkName"), tree.get("containerId")) != (file.network, file.container_id):
        return None
    config = tree.get("config")
    configured = _configured(config if isinstance(config, str) else "")
    if configured.delegates:
        return None

    return CniResult(
        network=file.network,
        container_id=file.container_id,
        ifname=str(tree.get("ifName", file.ifname)),
        pod=None if is_bare else _pod(tree.get("cniArgs")),
        ranges=configured.ranges or _inferred_ranges(tree.get("result")),
        data_dir=configured.data_dir,
        mtime_ns=mtime_ns,
        namespace=_namespace(tree),
        port_mappings=_port_mappings(tree.get("capabilityArgs")) if configured.ports else (),
        uses_pod_cidr=configured.uses_pod_cidr,
        plugin=configured.plugin,
    )


@lru_cache(maxsize=4)  # the results of a network have it in common
def _configured(config: str) -> _Configured:
    """Return what a configuration says, in base64; nothing if it is malformed."""
    plugins = _plugins(config)
    main = next((plugin for plugin in plugins if isinstance(plugin.get("ipam"), dict)), {})
    ipam = main.get("ipam", {})
    return _Configured(
        delegates=any(_DELEGATES & plugin.keys() for plugin in plugins),
        ranges=_configured_ranges(ipam),
        data_dir=text_field(ipam, "dataDir") if ipam.get("type") == "host-local" else "",
        uses_pod_cidr=_POD_CIDR in json.dumps(ipam),
        plugin=text_field(main, "type"),
        ports=any(map(_takes_ports, plugins)),
    )


def _takes_ports(plugin: Mapping[str, Any]) -> bool:
    """Return whether libcni passes it the forwarded ports: it declares the capability."""
    capabilities = plugin.get("capabilities")
    return isinstance(capabilities, dict) and bool(capabilities.get("portMappings"))


def _plugins(config: Any) -> list[dict[str, Any]]:
    """Return the plugins of a configuration that are not disabled; none if it is malformed.

    It is a plugin itself or has a list of them.
    """
    try:
        tree = json.loads(base64.b64decode(config))
        plugins = respelled(tree.get("plugins") or [tree])
        dicts = [plugin for plugin in plugins if isinstance(plugin, dict)]
        return [plugin for plugin in dicts if not is_disabled(plugin)]
    except MALFORMED:
        return []


def _pod(arguments: Any) -> str:
    """Return the `namespace/name` in CNI arguments; empty: they name no pod."""
    try:
        values = {str(key): str(value) for key, value in arguments}
        return f"{values['K8S_POD_NAMESPACE']}/{values['K8S_POD_NAME']}"
    except MALFORMED:
        return ""


def _configured_ranges(ipam: Mapping[str, Any]) -> RangeSets:
    """Return the ranges of host-local's configuration; none if they are missing or malformed."""
    try:
        return tuple(
            tuple(subnet_range(each.subnet, each.first, each.last, each.gateway) for each in ranges)
            for ranges in ranges_of(ipam)
        )
    except MALFORMED:
        return ()


def _inferred_ranges(result: Any) -> RangeSets:
    """Infer the ranges from the addresses of a result; none if it is malformed."""
    try:
        addresses = _addresses(result)
        return tuple((subnet_range(ip, gateway=gateway or ""),) for ip, gateway in addresses)
    except MALFORMED:
        return ()


def _addresses(result: Any) -> Iterator[tuple[str, str | None]]:
    """Yield each address with its gateway: `ip4`/`ip6` of version 0.2, `ips` of later ones."""
    for family in ("ip4", "ip6"):
        if address := result.get(family):
            yield address["ip"], address.get("gateway")
    for address in result.get("ips") or []:
        yield address["address"], address.get("gateway")


def _namespace(cached: Mapping[str, Any]) -> str:
    """Return where the namespace of the sandbox is mounted; empty: it is not known.

    Interfaces of the host have none.
    """
    try:
        interfaces = cached["result"].get("interfaces") or []
        paths = [interface.get("sandbox") for interface in interfaces]
    except MALFORMED:
        paths = []
    for path in (*paths, cached.get("netns")):
        # kubenet names that of a process, which is not mounted: `/proc/<pid>/ns/net`.
        if isinstance(path, str) and path.startswith("/") and not path.startswith("/proc/"):
            return path
    return ""


def _port_mappings(arguments: Any) -> tuple[PortMapping, ...]:
    """Return the forwarded ports; none if they are malformed."""
    mappings = []
    try:
        for mapping in arguments["portMappings"]:
            port = mapping.get("hostPort")
            protocol = str(mapping.get("protocol") or "tcp")
            if type(port) is int and 0 < port < 1 << 16:
                mappings.append(PortMapping(port, protocol.lower()))
    except MALFORMED:
        return ()
    return tuple(mappings)


def result_files(reservation: Reservation) -> tuple[ResultFile, ...]:
    """Return the files that libcni keeps for a reservation's sandbox.

    One is of the interface, and one of the loopback that dockershim and cri-dockerd add.
    """
    loopback = "kubenet-loopback" if reservation.network == KUBENET else "cni-loopback"
    container_id = reservation.container_id
    return (
        ResultFile(reservation.network, container_id, reservation.ifname or "eth0"),
        ResultFile(loopback, container_id, _LOOPBACK),
    )


def belongs(content: bytes, reservation: Reservation, file: ResultFile) -> bool:
    """Return whether the content is the cached result of this sandbox and interface.

    Never raises, whatever the bytes.
    """
    # A bare result (libcni < 0.8) names no sandbox: it is matched by its address.
    try:
        tree = json.loads(content)
        if tree.get("kind") == _CACHE_KIND:
            named = (tree["networkName"], tree["containerId"], tree["ifName"])
            return bool(named == file)
        addresses = [ip_interface(str(address)).ip for address, _ in _addresses(tree)]
    except MALFORMED:
        return False

    if file.ifname == _LOOPBACK:
        return bool(addresses) and all(address.is_loopback for address in addresses)
    return ip_address(reservation.ip) in addresses


def is_deleted_by_id(content: bytes) -> bool:
    """Return whether a DEL of a result that `belongs` cannot harm the next owner of the address."""
    plugins = _plugins(json.loads(content).get("config"))
    return bool(plugins) and all(plugin.get("type") in _DELETED_BY_ID for plugin in plugins)
