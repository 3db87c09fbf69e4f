"""Which sandboxes without a process still have their network namespace: it is mounted."""

import re
from collections.abc import Iterable
from typing import Final

from agent.model.snapshot import CniResult


def named_sandboxes(results: Iterable[CniResult]) -> frozenset[str]:
    """Return the sandboxes, by container ID, of which libcni's cache names the network namespace."""
    return frozenset(one.container_id for one in results if one.namespace)


def mounted_by_sandbox(results: Iterable[CniResult], mounted: Iterable[str]) -> dict[str, str]:
    """Return where the network namespace of each sandbox is mounted, by container ID.

    Runtimes give namespaces random names. Only these are compared, because the mount table has paths without symbolic
    links, and libcni has them as the runtime wrote them (`/var/run`).
    """
    places = {_name(place): place for place in mounted}
    named = ((one.container_id, _name(one.namespace)) for one in results if one.namespace)
    return {container_id: places[name] for container_id, name in named if name in places}


def of_nobody(results: Iterable[CniResult], mounted: Iterable[str]) -> str:
    """Return a mounted namespace of which no result tells whose it is; empty: there is none.

    docker itself removes, when it starts, those of its own that belong to no container.
    """
    named = {_name(one.namespace) for one in results if one.namespace}
    return next((place for place in mounted if _name(place) not in named and not _DOCKER.search(place)), "")


_DOCKER: Final = re.compile(r"/docker[^/]*/netns/")


def _name(path: str) -> str:
    return path.rpartition("/")[2]
