"""Recordings without names: those of nodes, pods, namespaces and processes are replaced by hashes."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent.model.codec import is_blocked_address


def anonymous(text: str, salt: str) -> str:
    """Replace every name of a node, pod, namespace and process; equal names stay equal. Addresses and ids stay."""
    tree = json.loads(text)
    names = {name: f"x{hashlib.sha256(f'{salt}{name}'.encode()).hexdigest()[:10]}" for name in _names(tree)}
    longest_first = sorted(names, key=len, reverse=True)

    def clean(node: Any, field: str = "") -> Any:
        if isinstance(node, dict):
            return {key: value if _is_kept(node, key) else clean(value, key) for key, value in node.items()}
        if isinstance(node, list):
            return [clean(value, field) for value in node]
        if isinstance(node, str) and field in _WHOLE:
            return names.get(node, node)
        if isinstance(node, str) and field in _NAMED:
            return "/".join(names.get(part, part) for part in node.split("/"))
        if isinstance(node, str) and field in _VOLUMES:
            kind, parts = _volume(node)
            return kind + "/".join(names.get(part, part) for part in parts)
        if isinstance(node, str) and field in {"why", "message"}:
            for name in longest_first:
                node = node.replace(name, names[name])
        return node

    return json.dumps(clean(tree), indent=1)


_WHOLE = frozenset({"provider_id", "earlier_id"})
"""Names that are hashed whole: their parts (`aws:`, a zone) are common words elsewhere."""

_NAMED = frozenset({
    "node_name", "kubelet_name", "pod", "pod_uid", "uid", "name", "command", "boot_id", "container", "controller",
    "claim", "claims", "failed_pods",
})  # fmt: skip
_VOLUMES = frozenset({"volume", "volumes", "volumes_in_use", "volumes_attached"})
_KIND = re.compile(r"kubernetes\.io/csi/[^^]*\^|[^/]+/[^/]+/")
"""How a volume's name begins: with its plugin or driver, which its vendor named."""


def _volume(name: str) -> tuple[str, list[str]]:
    """Return the kind of a volume, and the parts of its id."""
    kind = matched[0] if (matched := _KIND.match(name)) else ""
    return kind, name.removeprefix(kind).split("/")


def _names(node: Any, field: str = "") -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if not _is_kept(node, key):
                yield from _names(value, key)
    elif isinstance(node, list):
        for value in node:
            yield from _names(value, field)
    elif isinstance(node, str):
        yield from filter(None, _names_in(node, field))


def _names_in(text: str, field: str) -> Sequence[str]:
    if field == "controller":
        return text.split("/")[1:]  # without its kind
    if field in _WHOLE:
        return [text]
    if field in _NAMED:
        return text.split("/")
    return _volume(text)[1] if field in _VOLUMES else ()


def _is_kept(node: Mapping[str, Any], field: str) -> bool:
    """Return whether a name is kept: an address, or a plugin's socket, which its vendor named."""
    return is_blocked_address(node, field) or (field == "name" and {"made", "connected"} <= node.keys())
