"""Values of settings, for the model and for whoever reads the settings.

A module of its own: every command reads the settings, and few need the rest of the model.
"""

import re
from datetime import timedelta
from enum import StrEnum
from posixpath import normpath
from typing import Final

AUTO: Final = "auto"
"""In place of a network's name: the networks that pods of this node use."""
GRACE: Final = timedelta(minutes=5)
SETTLE: Final = timedelta(minutes=5)
MAX_SHARE: Final = 0.5
"""The defaults of `Limits`."""
PROVISION_TIME: Final = timedelta(minutes=15)
"""The default of cluster-autoscaler's `--max-node-provision-time`, and of the setting."""
MAX_RESERVATIONS: Final = 65_536
"""Files in the directories of all networks: the maximum of the setting --max-reservations."""

_UNIX: Final = re.compile(r"\Aunix:(?://[^/]*(?=/)|(?=/(?!/)))")


class Expected(StrEnum):
    """Whether a Node must have a provider ID (`--provider-id`)."""

    AUTO = "auto"  # if there is evidence that the cluster uses a cloud
    REQUIRED = "required"
    IGNORED = "ignored"


def endpoint_path(text: str) -> str:
    """Return the path of an endpoint as the kernel knows it.

    An endpoint is such as `unix:///var/run//crio/crio.sock`.
    """
    path = _UNIX.sub("", text, count=1)
    if not path.startswith("/"):
        return text
    path = normpath(f"/{path.lstrip('/')}")
    return path.removeprefix("/var") if path.startswith("/var/run/") else path
