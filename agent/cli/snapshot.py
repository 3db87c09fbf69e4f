"""Snapshots of this node for the commands that report on it."""

from typing import TYPE_CHECKING

from agent.cli.output import progress
from agent.config import Config

if TYPE_CHECKING:
    from agent.model.recording import Recording


def record_node(config: Config) -> "Recording":
    """Take a snapshot of the node, and a second one if a finding has to be confirmed."""
    from datetime import timedelta

    from agent.app import loop
    from agent.app.sources import displayed_name, for_command
    from agent.model.recording import Recording

    sources = for_command(config).snapshot
    with progress("taking a snapshot of the node"):
        snapshots = loop.take_snapshots(sources, displayed_name(config), config.grace, config.confirm_after)
    return Recording(grace=config.grace, confirm_after=timedelta(0), snapshots=snapshots)
