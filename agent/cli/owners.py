"""Names of pods that only the daemon remembers: kubenet, for one, leaves no record of who had a leaked address.

They come from whatever answers on the daemon's port. They name, and never prove, veto or release anything.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.config import Config
    from agent.model.recording import Recording
    from agent.model.report import Report


def remembered_pods(config: "Config") -> dict[str, str]:
    """Return the pods that the daemon knows, by container ID; none if it does not answer."""
    from agent.sources.daemon import DaemonClient

    try:
        return DaemonClient(config.listen).pods()
    except Exception:  # noqa: BLE001 (no command may fail for a name)
        return {}


def assess(recording: "Recording", config: "Config | None") -> "Report":
    """Assess snapshots. `config`: of the node, whose daemon is asked for names that are missing; None: of no node."""
    from agent.checks import engine

    grace, confirm_after = recording.grace, recording.confirm_after
    report = engine.replay(recording.snapshots, grace=grace, confirm_after=confirm_after)
    if config is None or not report.unnamed or not (pods := remembered_pods(config)):
        return report
    return engine.replay(recording.snapshots, grace=grace, confirm_after=confirm_after, pods=pods)
