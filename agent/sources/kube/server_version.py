"""What the API server calls its version: asked once a connection, and never waited for at the cost of anything else."""

import json
import re
from collections.abc import Callable

from agent.sources.deadline import Deadline
from agent.sources.error import SourceError
from agent.sources.kube.client import Api

_PATH = "/version"
_VERSION = re.compile(r"v[0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,6}(?:[-+.][A-Za-z0-9.+_-]{0,60})?")
"""`v1.20.2`, `v1.18.9-eks-d1db3c`, `v1.9.2+coreos.0`: it reaches terminals, so nothing else is one."""


class ServerVersion:
    """The last answer. Connections of several threads may share one of these."""

    def __init__(self) -> None:
        self.said = ""
        """Empty: not known."""

    def asking(self, seconds: float) -> Callable[[Api], None]:
        """Return what asks a server anew, for one thread. A server that refuses, or takes longer, is not known.

        A connection is used by one thread at a time, unless that is late: then nobody waits for it any more.
        """
        within = Deadline("API server", seconds)

        def ask(api: Api) -> None:
            try:
                self.said = parse(within(lambda: api.get(_PATH)))
            except SourceError:
                self.said = ""

        return ask


def parse(body: bytes) -> str:
    """Read the answer of `/version`; empty where it names none."""
    try:
        said = json.loads(body)["gitVersion"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return said if isinstance(said, str) and _VERSION.fullmatch(said) else ""
