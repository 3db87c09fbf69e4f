"""The API server's version, requested once for each connection."""

import json
import re

from agent.sources.kube.client import Api
from agent.sources.source_error import SourceError

_PATH = "/version"
_VERSION = re.compile(r"v[0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,6}(?:[-+.][A-Za-z0-9.+_-]{0,60})?")
"""`v1.20.2`, `v1.18.9-eks-d1db3c`, `v1.9.2+coreos.0`. It is printed to terminals, so nothing else is accepted."""


class ServerVersion:
    """The last answer. Connections of several threads may share one."""

    def __init__(self) -> None:
        self.value = ""
        """Empty: not known."""

    def request(self, api: Api) -> None:
        """Request it. If the server refuses, or does not answer in time, it is not known."""
        try:
            self.value = parse_version(api.get(_PATH))
        except SourceError:
            self.value = ""


def parse_version(body: bytes) -> str:
    """Read an answer of `/version`; empty if it has no version."""
    try:
        version = json.loads(body)["gitVersion"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return version if isinstance(version, str) and _VERSION.fullmatch(version) else ""
