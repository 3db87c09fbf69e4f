"""Snapshots of this node, and names of pods that only the daemon remembers.

kubenet, for one, leaves no record of which pod had a leaked address. Whatever answers on the
daemon's port gives the names: they are displayed, and never prove, refuse or release anything.
"""

from datetime import timedelta
from functools import partial

from agent.app import loop
from agent.app.sources import displayed_name, for_command
from agent.checks import engine
from agent.cli.daemon_client import DaemonClient
from agent.cli.output import progress
from agent.config import Config
from agent.model.documents import Recording
from agent.model.report import Report


def record_node(config: Config) -> Recording:
    """Take a snapshot of the node, and a second one if a finding has to be confirmed."""
    sources = for_command(config).snapshot
    with progress("taking a snapshot of the node"):
        snapshots = loop.take_snapshots(
            sources, displayed_name(config), config.grace, config.confirm_after
        )
    return Recording(grace=config.grace, confirm_after=timedelta(0), snapshots=snapshots)


def assess(recording: Recording, config: Config | None) -> Report:
    """Assess snapshots. `config`: of this node, whose daemon may know missing names; or None."""
    replay = partial(
        engine.replay,
        recording.snapshots,
        grace=recording.grace,
        confirm_after=recording.confirm_after,
    )

    report = replay()
    if config is None or not report.unnamed:
        return report
    pods = remembered_pods(config)
    return replay(pods=pods) if pods else report


def remembered_pods(config: Config) -> dict[str, str]:
    """Return the pods that the daemon knows, by container ID; none if it does not answer."""
    try:
        return DaemonClient(config.listen).pods()
    except Exception:  # noqa: BLE001 (no command may fail for a name)
        return {}
