"""Properties of every finding about a volume."""

from datetime import timedelta

from hypothesis import given, settings

from agent.model.finding import Severity
from agent.model.snapshot import Snapshot
from agent.model.volumes import Confidence
from tests.builders import NOW, findings_of, the_node
from tests.checks.strategies import volume_nodes

_LONGEST = settings(max_examples=settings.get_profile(settings.get_current_profile_name()).max_examples * 4)


@_LONGEST
@given(volume_nodes())
def test_each_finding_is_a_volume_in_use_and_not_attached_and_as_certain_as_it_says(snapshot: Snapshot) -> None:
    worker = the_node(snapshot)
    lost = {f"volume {volume}" for volume in worker.volumes_in_use if volume not in worker.volumes_attached}
    mounted = {f"volume {mount.volume}" for mount in snapshot.mounts.known()}
    findings = findings_of("detached_volume", snapshot)
    assert not findings or (worker.ready and worker.controller_attach)
    for finding in findings:
        assert finding.subject in lost
        assert (finding.severity is Severity.WARNING) is (finding.confidence is Confidence.PROBABLE)
        assert (finding.confidence is Confidence.MOUNTED) is (finding.subject in mounted)
        if finding.confidence is not Confidence.MOUNTED:
            assert finding.since is not None
            assert NOW - finding.since >= timedelta(minutes=2 if finding.confidence is Confidence.CONFIRMED else 10)
