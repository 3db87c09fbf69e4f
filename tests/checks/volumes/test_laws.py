"""Properties of every node with volumes: unavailable sources, order, names, and findings."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.checks import engine
from agent.checks.volumes import detached_volume
from agent.model.anonymize import anonymous
from agent.model.documents import Recording, dumps, loads
from agent.model.finding import Finding, Severity
from agent.model.snapshot import SOURCES, Known, Pod, Snapshot
from agent.model.volumes import Attachment, Confidence, Mount
from tests.builders import (
    CLOUD_DISK,
    DISK,
    GRACE,
    NOW,
    assessment,
    attachments,
    node,
    node_using,
    processes,
    sandbox,
    the_node,
    waiting_pod,
    without,
)
from tests.strategies import names, seldom

_LONGEST = settings(max_examples=settings.get_profile(settings.get_current_profile_name()).max_examples * 4)
VOLUMES = (DISK, CLOUD_DISK, "kubernetes.io/csi/ebs.csi.aws.com^vol-8", "nodeleak/disk/data")
CLAIMS = ("data", "logs")
volumes, claims = st.sampled_from(VOLUMES), st.sampled_from(CLAIMS)
agos = st.sampled_from([timedelta(seconds=n) for n in (0, 119, 120, 599, 600, 7200)])


def several(values: st.SearchStrategy[str]) -> st.SearchStrategy[list[str]]:
    return st.lists(values, max_size=2, unique=True)


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    pod = waiting_pod(draw(names), *draw(several(volumes)), claims=draw(several(claims)), ago=draw(agos))
    if draw(seldom()):
        pod = replace(pod, deleting=True)
    return replace(pod, phase="Running", started=NOW) if draw(seldom()) else pod


attachment_strategy = st.builds(
    lambda volume, attached, failed, pod, claim: Attachment(
        volume, attached, failed and not attached, f"{pod.partition('/')[0]}/{claim}" if claim else ""
    ),
    volumes,
    st.sampled_from([None, True, True, False]),
    seldom(),
    names,
    st.sampled_from([*CLAIMS, ""]),
)


@st.composite
def volume_nodes(draw: st.DrawFn) -> Snapshot:
    """A node of which everything was read, and on which anything may be wrong with volumes."""
    waiting = draw(st.lists(pods(), max_size=3, unique_by=lambda pod: pod.name))
    usual = node_using(
        *draw(st.lists(volumes, min_size=1, max_size=3, unique=True)),
        attached=draw(st.lists(volumes, max_size=1)),
        ready=not draw(seldom()),
        controller_attach=not draw(seldom()),
    )
    return node(
        *(sandbox("7" * 64, pod.name) for pod in waiting[:1] if draw(seldom())),
        pods=waiting,
        node=[usual],
        processes=[processes(kubelet=timedelta(seconds=60) if draw(seldom()) else GRACE)],
        mounts=draw(st.lists(st.builds(Mount, volumes, names.map(lambda name: f"uid of {name}")), max_size=1)),
        attachments=attachments(
            *draw(st.lists(attachment_strategy, max_size=3, unique_by=lambda attachment: attachment.volume)),
            failed_pods=[pod.uid for pod in waiting if draw(seldom())],
            not_requested=["list events"] if draw(seldom()) else [],
        ),
    )


def finding_keys(snapshot: Snapshot) -> tuple[dict[Any, Finding], bool]:
    findings, gaps = engine.detect(assessment(snapshot), (detached_volume,))
    assert not [gap for gap in gaps if gap.broken]
    return {finding.key: finding for finding in findings}, bool(gaps)


@_LONGEST
@given(volume_nodes())
def test_each_finding_is_a_volume_in_use_and_not_attached_reported_once(snapshot: Snapshot) -> None:
    findings, gaps = finding_keys(snapshot)
    assert not gaps
    worker = the_node(snapshot)
    lost = {f"volume {volume}" for volume in worker.volumes_in_use} - {
        f"volume {volume}" for volume in worker.volumes_attached
    }
    assert {finding.subject for finding in findings.values()} <= lost
    if not (worker.ready and worker.controller_attach):
        assert not findings
    for finding in findings.values():
        assert finding.confidence is not None
        assert (finding.severity is Severity.WARNING) is (finding.confidence is Confidence.PROBABLE)


@_LONGEST
@given(volume_nodes())
def test_a_mounted_volume_is_reported_as_mounted_without_a_waiting_pod(snapshot: Snapshot) -> None:
    findings, _ = finding_keys(snapshot)
    mounted = {f"volume {mount.volume}" for mount in snapshot.mounts.known()}
    for finding in findings.values():
        assert (finding.confidence is Confidence.MOUNTED) is (finding.subject in mounted)
        if finding.confidence is not Confidence.MOUNTED:
            assert finding.since is not None
            assert NOW - finding.since >= timedelta(minutes=2 if finding.confidence is Confidence.CONFIRMED else 10)


@_LONGEST
@given(volume_nodes(), st.sampled_from(SOURCES))
def test_unavailable_sources_never_add_a_finding_and_leave_a_gap(snapshot: Snapshot, source: str) -> None:
    before, _ = finding_keys(snapshot)
    after, gaps = finding_keys(without(snapshot, source))
    assert after.keys() <= before.keys()
    assert gaps or after.keys() == before.keys()


@_LONGEST
@given(volume_nodes(), st.randoms(use_true_random=False))
def test_the_order_of_the_records_does_not_matter(snapshot: Snapshot, random: Any) -> None:
    worker = the_node(snapshot)
    mixed = replace(
        snapshot,
        pods=Known(tuple(random.sample(snapshot.pods.known(), len(snapshot.pods.known())))),
        node=Known(replace(worker, volumes_in_use=tuple(reversed(worker.volumes_in_use)))),
    )
    assert finding_keys(mixed) == finding_keys(snapshot)


@_LONGEST
@given(volume_nodes())
def test_an_anonymous_recording_has_the_same_findings(snapshot: Snapshot) -> None:
    recording = Recording(GRACE, timedelta(0), (snapshot,))
    assert loads(dumps(recording)) == recording
    (read_back,) = anonymous(recording).snapshots

    def kinds(recorded: Snapshot) -> Any:
        return sorted(
            (str(finding.confidence), bool(finding.pod), str(finding.since))
            for finding in finding_keys(recorded)[0].values()
        )

    assert kinds(read_back) == kinds(snapshot)
