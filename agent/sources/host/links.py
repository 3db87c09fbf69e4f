"""The network interfaces of the node itself, by netlink (rtnetlink(7)), which needs no capability.

Read-only, only while a pod waits or a sandbox is stuck.
"""

import socket
import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from agent.model.node_network import Link
from agent.model.remedy import Remedy
from agent.model.snapshot import Snapshot
from agent.model.text import escape
from agent.sources.source import Source, reason_nothing_is_stuck
from agent.sources.source_error import SourceError, cannot_read, describe_os_error

_MESSAGE: Final = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
_ADDRESS: Final = struct.Struct("=BBBBI")  # ifaddrmsg: family, prefix length, flags, scope, index
_ATTRIBUTE: Final = struct.Struct("=HH")  # rtattr: length, type

_GET_ADDRESSES: Final = 22
_DUMP: Final = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_ERROR: Final = 2
_DONE: Final = 3
_PEER: Final = 1  # IFA_ADDRESS: of a point-to-point link the other end's
_LOCAL: Final = 2  # IFA_LOCAL, which only IPv4 has
_BUFFER: Final = 64 * 1024  # bytes: the kernel sends at most half as much at once
_TIMEOUT: Final = 2.0  # seconds


@dataclass(frozen=True)
class LinksSource(Source):
    proc: Path
    name = "links"

    def reason_not_needed(self, snapshot: Snapshot) -> str | None:
        return reason_nothing_is_stuck(snapshot)

    def read(self, _: Snapshot) -> tuple[Link, ...]:
        return read_links(self.proc)


def read_links(proc: Path) -> tuple[Link, ...]:
    """Return every interface; raises SourceError, also in a network that is not the node's."""
    _require_network_of_node(proc)
    addresses = defaultdict(list)
    try:
        for index, address in _addresses():
            addresses[index].append(address)
        links = socket.if_nameindex()
    except OSError as error:
        raise SourceError(f"cannot list addresses: {describe_os_error(error)}") from error
    except (struct.error, ValueError) as error:
        raise SourceError(f"cannot parse the kernel's addresses: {error}") from error
    return tuple(Link(escape(name), tuple(addresses[index])) for index, name in links)


def _require_network_of_node(proc: Path) -> None:
    """Raise SourceError unless this process is in the node's network namespace."""
    # A file of each network namespace tells them apart, and needs no capability.
    try:
        own = Path("/proc/self/net/dev").stat().st_ino
        node = (proc / "1/net/dev").stat().st_ino
    except OSError as error:
        raise SourceError(cannot_read(error.filename, error)) from error

    if own != node:
        remedy = Remedy("set hostNetwork: true")
        raise SourceError(f"this is not the node's network ({remedy})", remedy)


def _addresses() -> Iterator[tuple[int, str]]:
    """Yield the index of an interface with each of its addresses; raises OSError."""
    size = _MESSAGE.size + _ADDRESS.size
    request = _MESSAGE.pack(size, _GET_ADDRESSES, _DUMP, 1, 0) + _ADDRESS.pack(0, 0, 0, 0, 0)

    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(_TIMEOUT)
        kernel.sendto(request, (0, 0))
        while True:
            for kind, content in _parts("a message", kernel.recv(_BUFFER), _MESSAGE):
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    (code,) = struct.unpack_from("=i", content)
                    raise OSError(-code, "netlink")

                _, prefix, _, _, index = _ADDRESS.unpack_from(content)
                attributes = dict(_parts("an attribute", content[_ADDRESS.size :], _ATTRIBUTE))
                address = attributes.get(_LOCAL) or attributes.get(_PEER)
                if address:
                    yield index, f"{ip_address(address)}/{prefix}"


def _parts(what: str, data: bytes, header: struct.Struct) -> Iterator[tuple[int, bytes]]:
    """Yield the type and the content of each message, or of each attribute of one.

    Raises struct.error and ValueError. `what`: the name of one, for the message.
    """
    while data:
        length, kind, *_ = header.unpack_from(data)
        if length < header.size:
            raise ValueError(f"{what} is truncated")
        yield kind, data[header.size : length]

        aligned = length + 3 & ~3  # the next one begins at a multiple of four
        data = data[aligned:]
