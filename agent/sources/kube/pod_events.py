"""How to list the Events of a pod."""

from typing import Final
from urllib.parse import quote

from agent.model.snapshot import Pod
from agent.sources.kube.connection import Query

_PAGE: Final = "500"
"""Few Events match, and servers before 1.24 search the namespace's in pages of this size."""


def pod_events(pod: Pod) -> tuple[str, Query]:
    """Return the path and the query of the request."""
    namespace = quote(pod.name.partition("/")[0])
    selector = ("fieldSelector", f"involvedObject.uid={pod.uid}")
    return f"/api/v1/namespaces/{namespace}/events", (selector, ("limit", _PAGE))
