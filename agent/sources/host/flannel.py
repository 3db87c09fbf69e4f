"""Reads the node's subnet from flannel: the configuration of its network has no range. Changes nothing."""

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from agent.model.runtime import RuntimeNetwork, WrittenRange

_LARGEST: Final = 4096
"""Characters; the file has 150."""
_SUBNET: Final = re.compile(r"^FLANNEL_(?:IPV6_)?SUBNET=([0-9a-fA-F:.]+/\d{1,3})$", re.MULTILINE)


def with_subnet(networks: Iterable[RuntimeNetwork], run_dir: Path) -> tuple[RuntimeNetwork, ...]:
    """Complete flannel's network. Without the file it stays as it is: a result in libcni's cache has the range too."""
    return tuple(_complete(one, run_dir) if "flannel" in one.plugins and not one.ranges else one for one in networks)


def _complete(network: RuntimeNetwork, run_dir: Path) -> RuntimeNetwork:
    try:
        with (run_dir / "flannel/subnet.env").open(errors="replace") as file:
            text = file.read(_LARGEST + 1)
    except OSError:
        return network
    if len(text) > _LARGEST:  # a part of it could end within a subnet
        return network
    return replace(network, ranges=tuple((WrittenRange(subnet),) for subnet in _SUBNET.findall(text)))
