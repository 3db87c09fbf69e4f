"""The table of `kubectl nodeleak status`. Pure."""

from collections.abc import Iterator, Sequence

from agent.exporters.text.table import grid, lines_as_text
from agent.fleet.status import Network, NodeStatus, summary
from agent.model.text import format_number, truncate

_HEAD = ["NODE", "AGENT", "NETWORK", "FREE", "LEAKED", "AGE", "FINDINGS"]
_WIDE = ["NODE", "STATUS", "POD", "AGENT", "NETWORK", "FREE", "LEAKED", "UNKNOWN", "AGE", "CLEANUP", "FINDINGS"]
_LONGEST = 100


def status_table(statuses: Sequence[NodeStatus], *, wide: bool) -> str:
    """Write the nodes in the given order, one row for each of their networks. `wide`: with more columns, uncut."""
    return lines_as_text(_lines(statuses, wide=wide))


def _lines(statuses: Sequence[NodeStatus], *, wide: bool) -> Iterator[str]:
    yield from summary(statuses)
    if statuses:
        yield ""
        head, row = (_WIDE, _wide) if wide else (_HEAD, _row)
        yield from grid([head, *(row(one, network) for one in statuses for network in one.networks)])


def _row(one: NodeStatus, network: Network) -> list[str]:
    free, leaked, _ = _addresses(network)
    return [one.target.node, one.agent, network.name, free, leaked, one.age, truncate(one.text, _LONGEST) or "none"]


def _wide(one: NodeStatus, network: Network) -> list[str]:
    pod = one.target.agent.name if one.target.agent else "-"
    return [
        *(one.target.node, one.target.status, pod, one.agent, network.name, *_addresses(network)),
        *(one.age, one.cleanup, one.text or "none"),
    ]


def _addresses(network: Network) -> tuple[str, str, str]:
    if network.name == "-":
        return "-", "-", "-"
    free = f"{format_number(network.free)}/{format_number(network.usable)}"
    return free, format_number(network.leaked), format_number(network.unknown)
