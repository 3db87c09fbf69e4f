"""Reads libcni's cache: a sandbox's pod and network namespace, and a network's ranges. Changes nothing.

Two places (`/var/lib/cni/cache/results` of dockershim and cri-dockerd, `/var/lib/cni/results` of others) and two
formats: a bare result (libcni < 0.8), and `cniCacheV1` with the configuration and the CNI arguments. Whether an entry
exists says nothing about an address being in use; whether the namespace that it names is mounted does.
"""

import base64
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_interface
from pathlib import Path
from typing import Any, Final, TypeAlias

from agent.model.assessment import KUBENET
from agent.model.ranges import RangeSets, subnet_range
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
from agent.sources.source import Source, WithFields
from agent.sources.source_error import NotFound, SourceError

_LOOPBACK: Final = "lo"
LARGEST: Final = (
    4 * 1024 * 1024
)  # bytes: CRI-O adds a pod's annotations, 256 KiB that Go may escape to six times
_NAME: Final = re.compile(r"(?P<network>.+)-(?P<id>[0-9a-f]{64})-(?P<ifname>[^/]{1,15})")
"""Names of networks and interfaces may have dashes. An interface's name is too short to have an id
in it (IFNAMSIZ)."""
_DELEGATES: Final = frozenset({"delegates", "clusterNetwork"})
"""Keys of a plugin (Multus) that calls other networks' plugins: its result says nothing of where an address is from."""
_DELETED_BY_ID: Final = ("bridge", "ptp", "macvlan", "ipvlan", "portmap", "bandwidth", "tuning")
"""Plugins whose DEL finds what to delete by the container's ID, or in its namespace. That of `firewall` deletes the
rules of the addresses in the result, whoever has them by then."""
_POD_CIDR: Final = '"usePodCidr'  # in place of a subnet, with `IPv6` behind it for the other family

_Version: TypeAlias = tuple[str, int, int, int]  # name, inode, modification time and size of a file
_Parsed: TypeAlias = (
    CniResult | DamagedResult | None
)  # None: it is no result of the sandbox that its name tells


@dataclass(frozen=True)
class CniResultsSource(Source):
    results: "CniResults"
    name = "cni_results"

    def read(self, _: Snapshot) -> WithFields:
        results = self.results.read()
        return WithFields(results, {"damaged_results": self.results.damaged})


class CniResults:
    """The cache. Each file is parsed once: libcni writes it once, and there is one for each pod."""

    def __init__(
        self, directories: Iterable[Path], is_missing: Callable[[Path], bool] = lambda _: False
    ) -> None:
        """`is_missing`: whether a path that does not exist for this process is known not to exist on the node."""
        self._directories, self._is_missing = tuple(directories), is_missing
        self._parsed: dict[_Version, _Parsed] = {}
        self.damaged: tuple[
            DamagedResult, ...
        ] = ()  # the files of the last reading that have no result

    def read(self) -> tuple[CniResult, ...]:
        """Read what is cached of all networks; raises SourceError where no directory exists, or any is unreadable."""
        # The networks that are not checked show where pods have their addresses from instead.
        parsed: dict[_Version, _Parsed] = {}
        missing: list[Path] = []
        self.damaged = ()
        for path in self._directories:
            try:
                # An unreadable file may name a mounted namespace: it makes all of them unavailable.
                with open_directory(path) as directory:
                    for name in names_in(directory, path):
                        self._read_file(name, directory, parsed)
            except NotFound:
                missing.append(path)
        if len(missing) == len(self._directories) and not all(map(self._is_missing, missing)):
            raise NotFound(
                f"none of these exists: {', '.join(map(str, missing))} (check --cni-cache-dir)"
            )
        self._parsed = parsed
        self.damaged = tuple(
            result for result in parsed.values() if isinstance(result, DamagedResult)
        )
        return tuple(result for result in parsed.values() if isinstance(result, CniResult))

    def _read_file(self, name: str, directory: int, parsed: dict[_Version, _Parsed]) -> None:
        """Add one file, if it is a result and still exists. Raises OSError."""
        matched = _NAME.fullmatch(name)
        if matched is None or matched["ifname"] == _LOOPBACK:
            return
        named = matched["network"], matched["id"], matched["ifname"]
        try:
            found = os.stat(name, dir_fd=directory, follow_symlinks=False)
            version = (name, found.st_ino, found.st_mtime_ns, found.st_size)
            if version in self._parsed:
                parsed[version] = self._parsed[version]
            elif stat.S_ISREG(found.st_mode):
                content, mtime_ns = read_file(name, directory, largest=LARGEST)
                parsed[version] = _parse(content, *named, mtime_ns)
        except FileNotFoundError:
            return
        except SourceError:
            parsed[version] = DamagedResult(*named, Damage.TOO_LARGE)


def _parse(content: bytes, network: str, container_id: str, ifname: str, mtime_ns: int) -> _Parsed:
    """Parse one cache file; None: it has another result than its name says. Never raises, whatever the bytes."""
    try:
        tree = json.loads(content)
        return (
            _result(tree, network, container_id, ifname, mtime_ns)
            if isinstance(tree, dict)
            else None
        )
    except (ValueError, RecursionError):
        return DamagedResult(
            network, container_id, ifname, Damage.MALFORMED if content else Damage.EMPTY
        )


def _result(
    tree: Mapping[str, Any], network: str, container_id: str, ifname: str, mtime_ns: int
) -> CniResult | None:
    is_bare = tree.get("kind") != "cniCacheV1"
    if is_bare:
        tree = {"networkName": network, "containerId": container_id, "result": tree}
    if (tree.get("networkName"), tree.get("containerId")) != (network, container_id):
        return None
    plugins = _plugins(tree.get("config"))
    if any(_DELEGATES & plugin.keys() for plugin in plugins):
        return None
    main = next((plugin for plugin in plugins if isinstance(plugin.get("ipam"), dict)), {})
    ipam = main.get("ipam", {})
    return CniResult(
        network=network,
        container_id=container_id,
        ifname=str(tree.get("ifName", ifname)),
        pod=None if is_bare else _pod(tree.get("cniArgs")),
        ranges=_ranges_of_ipam(ipam) or _ranges_of_result(tree.get("result")),
        data_dir=_text(ipam, "dataDir") if ipam.get("type") == "host-local" else "",
        mtime_ns=mtime_ns,
        namespace=_namespace(tree),
        port_mappings=_port_mappings(tree.get("capabilityArgs"), plugins),
        uses_pod_cidr=_POD_CIDR in json.dumps(ipam),
        plugin=_text(main, "type"),
    )


def _text(tree: Mapping[str, Any], key: str) -> str:
    return str(tree.get(key) or "")


def _plugins(config: Any) -> list[dict[str, Any]]:
    """Return the plugins of a configuration that are not disabled. It is a plugin itself or has a list of them."""
    try:
        tree = json.loads(base64.b64decode(config))
        plugins = (
            plugin
            for plugin in respelled(tree.get("plugins") or [tree])
            if isinstance(plugin, dict)
        )
        return [plugin for plugin in plugins if not is_disabled(plugin)]
    except (TypeError, ValueError, AttributeError, RecursionError):
        return []


def _pod(arguments: Any) -> str:
    try:
        named = {str(key): str(value) for key, value in arguments}
        return f"{named['K8S_POD_NAMESPACE']}/{named['K8S_POD_NAME']}"
    except (TypeError, ValueError, KeyError):
        return ""


def _ranges_of_ipam(ipam: Mapping[str, Any]) -> RangeSets:
    try:
        sets = (
            [subnet_range(r.subnet, r.first, r.last, r.gateway) for r in ranges]
            for ranges in ranges_of(ipam)
        )
        return tuple(map(tuple, sets))
    except (TypeError, ValueError, KeyError, AttributeError):
        return ()


def _ranges_of_result(result: Any) -> RangeSets:
    """Infer the ranges from the addresses of a result."""
    try:
        return tuple(
            (subnet_range(address, gateway=gateway or ""),)
            for address, gateway in _addresses(result)
        )
    except (TypeError, ValueError, KeyError, AttributeError):
        return ()


def _addresses(result: Any) -> list[tuple[str, str | None]]:
    """Return each address with its gateway: `ip4`/`ip6` of version 0.2, `ips` of later ones."""
    families = [result[family] for family in ("ip4", "ip6") if result.get(family)]
    given = [(family["ip"], family.get("gateway")) for family in families]
    return given + [(ip["address"], ip.get("gateway")) for ip in result.get("ips") or []]


def _namespace(cached: Mapping[str, Any]) -> str:
    """Return where the namespace of the sandbox is mounted. Interfaces of the host have none."""
    try:
        paths = [interface.get("sandbox") for interface in cached["result"].get("interfaces") or []]
    except (KeyError, AttributeError, TypeError):
        paths = []
    named = (path for path in (*paths, cached.get("netns")) if isinstance(path, str))
    # kubenet names that of a process, which is not mounted: `/proc/<pid>/ns/net`.
    return next(
        (path for path in named if path.startswith("/") and not path.startswith("/proc/")), ""
    )


def _port_mappings(arguments: Any, plugins: Iterable[Mapping[str, Any]]) -> tuple[PortMapping, ...]:
    """Return the forwarded ports. libcni passes them only to a plugin that declares the capability."""
    try:
        if not any(plugin.get("capabilities", {}).get("portMappings") for plugin in plugins):
            return ()
        given = (
            (mapping.get("hostPort"), mapping.get("protocol") or "tcp")
            for mapping in arguments["portMappings"]
        )
        ports = ((port, str(protocol).lower()) for port, protocol in given if type(port) is int)
        return tuple(PortMapping(port, protocol) for port, protocol in ports if 0 < port < 1 << 16)
    except (AttributeError, KeyError, TypeError):
        return ()


def names_of(reservation: Reservation) -> tuple[tuple[str, str, str], ...]:
    """Return the file name, network and interface of each result that libcni keeps for a reservation's sandbox."""
    # One for the interface, and one for the loopback that dockershim and cri-dockerd add.
    loopback = "kubenet-loopback" if reservation.network == KUBENET else "cni-loopback"
    of = ((reservation.network, reservation.ifname or "eth0"), (loopback, _LOOPBACK))
    return tuple(
        (f"{network}-{reservation.container_id}-{ifname}", network, ifname)
        for network, ifname in of
    )


def belongs(content: bytes, reservation: Reservation, network: str, ifname: str) -> bool:
    """Return whether the content is that result of that sandbox. Never raises, whatever the bytes."""
    # A bare result (libcni < 0.8) names no sandbox: it is matched by its address.
    try:
        tree = json.loads(content)
        if tree.get("kind") == "cniCacheV1":
            named = (tree["containerId"], tree["networkName"], tree["ifName"])
            return bool(named == (reservation.container_id, network, ifname))
        addresses = [ip_interface(str(address)).ip for address, _ in _addresses(tree)]
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
        return False
    if ifname == _LOOPBACK:
        return bool(addresses) and all(address.is_loopback for address in addresses)
    return ip_address(reservation.ip) in addresses


def is_deleted_by_id(content: bytes) -> bool:
    """Return whether a DEL of a result that `belongs`, at any time, leaves the next sandbox with its address alone."""
    plugins = _plugins(json.loads(content).get("config"))
    return bool(plugins) and all(plugin.get("type") in _DELETED_BY_ID for plugin in plugins)
