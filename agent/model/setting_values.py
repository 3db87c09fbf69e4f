"""Values of settings that the checks know. Apart from them, so that a command that checks nothing loads no check."""

from enum import StrEnum
from typing import Final

AUTO: Final = "auto"
"""In place of a network's name: the networks that pods of this node use."""


class Expected(StrEnum):
    """Whether a Node must have a provider ID (`--provider-id`)."""

    AUTO = "auto"
    """If there is evidence that the cluster uses a cloud."""
    REQUIRED = "required"
    IGNORED = "ignored"
