"""Volumes missing from the node's status: which are reported, how certain it is, and which pods are affected."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from agent.model.finding import Finding, Severity
from agent.model.snapshot import NotRequested, Snapshot
from agent.model.volumes import Attachment, Confidence, Holder, Mount, VolumeEvent
from tests import builders as b
from tests.builders import (
    CLOUD_DISK,
    DISK,
    NOW,
    attachments,
    findings_and_gap,
    node,
    node_using,
    waiting_pod,
    without,
)

DETECTOR = "detached_volume"
the, findings = partial(b.the_finding, DETECTOR), partial(b.findings_of, DETECTOR)
MINUTE = timedelta(minutes=1)
ATTACHED = Attachment(DISK, attached=True, claim="shop/data-db-0")
MIGRATED = (
    "kubernetes.io/csi/ebs.csi.aws.com^vol-8"  # The name of CLOUD_DISK where CSI migration is on
)
GCE_DISK = "kubernetes.io/gce-pd/d-1"
MIGRATED_GCE_DISK = "kubernetes.io/csi/pd.csi.storage.gke.io^projects/P/zones/z/disks/d-1"
RBD, MIGRATED_RBD = (
    "kubernetes.io/rbd/rbd:image-1",
    "kubernetes.io/csi/rbd.csi.ceph.com^mig_mons-b7f6_image-1_726264",
)
NOT_ATTACHED = replace(ATTACHED, attached=False)


def detached(*records: Any, words: Iterable[Attachment] = (ATTACHED,), **changes: Any) -> Snapshot:
    """The kubelet uses a disk that the controller does not say it has attached."""
    usual: dict[str, Any] = {"node": [node_using(DISK)], "attachments": attachments(*words)}
    return node(*records, **(usual | changes))


def verdict(finding: Finding) -> tuple[Confidence | None, Severity, str]:
    return finding.confidence, finding.severity, finding.pod


def test_a_pod_that_waits_for_an_attached_volume_confirms_it() -> None:
    finding = the(detached(waiting_pod(ago=2 * MINUTE)))
    assert (finding.confidence, finding.severity) == (Confidence.CONFIRMED, Severity.CRITICAL)
    assert (finding.subject, finding.pod, finding.since) == (
        f"volume {DISK}",
        "shop/db-0",
        NOW - 2 * MINUTE,
    )
    # The waiting time is the shorter one of both clocks.
    for skew in (timedelta(0), timedelta(seconds=30), timedelta(seconds=-30)):
        late = max(-skew, timedelta(0)) + 2 * MINUTE
        assert findings(replace(detached(waiting_pod(ago=late)), api_skew=skew))
        assert not findings(
            replace(detached(waiting_pod(ago=late - timedelta(seconds=1))), api_skew=skew)
        )
    # An earlier attach error hides nothing.
    told_before = attachments(ATTACHED, failed_pods=["uid of shop/db-0"])
    assert the(detached(waiting_pod(), attachments=told_before)).confidence is Confidence.CONFIRMED
    # The message says whether the version has the bug.
    for versions, words in (
        (
            ("v1.9.3", "v1.20.2", "v1.22.13", "v1.24.4", "v1.25.0"),
            "has the known bug that loses such entries;",
        ),
        (
            ("v1.22.14", "v1.23.11+k3s1", "v1.24.5", "v1.25.1", "v1.26.0", "1.36.3", "v2.0.0"),
            "restores such entries",
        ),
    ):
        for version in versions:
            message = the(replace(detached(waiting_pod()), server_version=version)).message
            assert f"Kubernetes {version} {words}" in message
    # A vendor's build may have the fix before the release has it.
    for version, release in (
        ("v1.18.4-tke.6", "1.18.4"),
        ("v1.23.10-gke.100", "1.23.10"),
        ("v1.21.2-eks-c3bf2d", "1.21.2"),
        ("v1.22.3+k3s1", "1.22.3"),
    ):
        message = the(replace(detached(waiting_pod()), server_version=version)).message
        assert f"Kubernetes {release} has the known bug that loses such entries, and" in message
        assert f"and the build {version} may have the fix" in message
    for version in ("", "banana"):
        message = the(replace(detached(waiting_pod()), server_version=version)).message
        assert "it is unknown whether this version of Kubernetes has the known bug" in message


def test_waiting_longer_than_any_attach_takes_is_probable() -> None:
    for attached in (None, False):
        words = [Attachment(DISK, attached=attached, claim="shop/data-db-0")]
        finding = the(detached(waiting_pod(ago=10 * MINUTE), words=words))
        assert verdict(finding) == (Confidence.PROBABLE, Severity.WARNING, "shop/db-0")
        assert not findings(
            detached(waiting_pod(ago=10 * MINUTE - timedelta(seconds=1)), words=words)
        )
    # A pod without a claim is matched by the ID of its volume.
    for named, volume in (
        (CLOUD_DISK, CLOUD_DISK),
        ("nodeleak/disk/data", "nodeleak/disk/data"),  # flex
        (CLOUD_DISK, MIGRATED),
        (GCE_DISK, MIGRATED_GCE_DISK),
    ):
        asking = waiting_pod("shop/inline", named, claims=())
        other = waiting_pod("shop/other", "kubernetes.io/aws-ebs/vol-9", claims=("data",))
        finding = the(detached(asking, other, node=[node_using(volume)], words=[]))
        assert (finding.confidence, finding.pod) == (Confidence.PROBABLE, "shop/inline")


def test_without_a_known_claim_the_message_names_every_waiting_pod_with_one() -> None:
    snapshot = detached(
        waiting_pod("shop/a"),
        waiting_pod("shop/b"),
        waiting_pod("shop/inline", CLOUD_DISK, claims=()),
        attachments=attachments(not_requested=["get volumeattachments", "list events"]),
    )
    finding = the(snapshot)
    assert (finding.confidence, finding.pod) == (Confidence.PROBABLE, "")
    assert (
        "it is unknown which pod needs it; waiting pods with a claim: shop/a since"
        in finding.message
    )
    assert ", shop/b since" in finding.message
    assert "inline" not in finding.message
    old = the(replace(snapshot, server_version="v1.21.5"))
    assert any("delete the pods that may wait for" in step.text for step in old.steps)
    many = the(detached(*(waiting_pod(f"shop/db-{n}") for n in range(18)), words=[])).message
    assert "shop/db-0 since" in many
    assert " and 3 more;" in many


def test_a_mounted_volume_may_be_detached_under_its_pod() -> None:
    (web, *_) = b.PODS
    finding = the(detached(mounts=[Mount(DISK), Mount(DISK, web.uid)]))
    assert verdict(finding) == (Confidence.MOUNTED, Severity.CRITICAL, "shop/web")
    assert finding.since is None
    for attached in (attachments(), b.unavailable("attachments")):  # no waiting, and no known pod
        found = the(detached(waiting_pod(), mounts=[Mount(DISK)], attachments=attached))
        assert verdict(found) == (Confidence.MOUNTED, Severity.CRITICAL, "")
        assert f"{DISK} is mounted but missing" in found.message
    ((found,), _) = findings_and_gap(DETECTOR, without(detached(mounts=[Mount(DISK)]), "pods"))
    assert found.confidence is Confidence.MOUNTED


def test_a_volume_attached_under_its_other_name_is_not_missing_or_unknown() -> None:
    for in_use, attached in (
        (CLOUD_DISK, MIGRATED),
        (MIGRATED, CLOUD_DISK),
        (GCE_DISK, MIGRATED_GCE_DISK),
    ):
        using = node_using(in_use, attached=[attached])
        snapshot = detached(waiting_pod(), node=[using], mounts=[Mount(in_use)])
        assert findings(snapshot) == []
        assert findings(without(snapshot, "processes", "mounts", "pods", "attachments")) == [], (
            "nothing else is needed"
        )
    # One that may be attached under its other name is unknown.
    for in_use, attached in (
        (RBD, MIGRATED_RBD),
        (MIGRATED_RBD, RBD),
        (CLOUD_DISK, "kubernetes.io/csi/ebs.csi.aws.com^vol-9"),
        (MIGRATED, "kubernetes.io/aws-ebs/aws://zone-a/vol-9"),
        ("kubernetes.io/cinder/c-1", "kubernetes.io/csi/cinder.csi.openstack.org^c-2"),
    ):
        using = node_using(in_use, DISK, attached=[attached])
        snapshot = detached(waiting_pod(), node=[using], mounts=[Mount(in_use), Mount(DISK)])
        found, gap = findings_and_gap(DETECTOR, snapshot)
        assert [finding.subject for finding in found] == [f"volume {DISK}"], (
            "no other volume is hidden"
        )
        assert f"whether {in_use} is attached, because" in gap.why
    # One of another driver, of another plugin, and another one of the plugin is another volume.
    for attached in (
        "kubernetes.io/csi/disk.example.com^vol-8",
        "kubernetes.io/gce-pd/vol-8",
        "kubernetes.io/aws-ebs/vol-9",
    ):
        using = node_using(CLOUD_DISK, attached=[attached])
        assert (
            the(detached(node=[using], mounts=[Mount(CLOUD_DISK)], words=[])).confidence
            is Confidence.MOUNTED
        )
    # A migrated volume that is in use itself proves no disagreement.
    other = "kubernetes.io/csi/ebs.csi.aws.com^vol-9"
    using = node_using(CLOUD_DISK, other, attached=[other])
    assert (
        the(detached(node=[using], mounts=[Mount(CLOUD_DISK)], words=[])).subject
        == f"volume {CLOUD_DISK}"
    )


def test_no_finding() -> None:
    failed = attachments(NOT_ATTACHED, failed_pods=["uid of shop/db-0"])
    elsewhere = [node_using(attached=[DISK])]
    for why, snapshot in {
        "attached": detached(waiting_pod(), node=[node_using(DISK, attached=[DISK])]),
        "node is not ready": detached(
            waiting_pod(), node=[node_using(DISK, ready=False)], mounts=[Mount(DISK)]
        ),
        "kubelet attaches by itself": detached(
            waiting_pod(), node=[node_using(DISK, controller_attach=False)], mounts=[Mount(DISK)]
        ),
        "kubelet has just started": detached(
            waiting_pod(),
            mounts=[Mount(DISK)],
            processes=[b.processes(kubelet=timedelta(seconds=119))],
        ),
        "no node": detached(waiting_pod(), node=[]),
        "nothing in use": detached(waiting_pod(), node=[node_using()]),
        "being detached after its pod has gone": detached(
            waiting_pod(), node=elsewhere, mounts=[Mount(DISK)]
        ),
        "nobody waits": detached(),
        "another is mounted": detached(mounts=[Mount(CLOUD_DISK)]),
        "attaching takes a minute": detached(waiting_pod(ago=timedelta(seconds=60))),
        "attaching takes nine minutes": detached(waiting_pod(ago=9 * MINUTE), words=[NOT_ATTACHED]),
        "attaching failed, and is tried again": detached(
            waiting_pod(ago=9 * MINUTE), words=[replace(NOT_ATTACHED, failed=True)]
        ),
        "an event says why, and it is tried again": detached(
            waiting_pod(ago=9 * MINUTE), attachments=failed
        ),
        "its pod does not wait": detached(waiting_pod("shop/other", claims=["other"])),
        "the pod has its volumes": detached(waiting_pod(), b.sandbox("7" * 64, "shop/db-0")),
        "the pod had its volumes": detached(
            waiting_pod(), b.sandbox("7" * 64, "shop/db-0", "exited")
        ),
        "the pod is deleted": detached(replace(waiting_pod(), deleting=True)),
        "the pod failed": detached(replace(waiting_pod(), phase="Failed")),
        "the pod has completed": detached(replace(waiting_pod(), phase="Succeeded")),
        "the pod runs": detached(replace(waiting_pod(), phase="Running")),
        "a container of it started": detached(replace(waiting_pod(), started=NOW - MINUTE)),
        "not known since when": detached(replace(waiting_pod(), scheduled=None)),
        "it needs no volume": detached(waiting_pod(claims=())),
        "its claim is bound to another volume": detached(
            waiting_pod(), words=[Attachment(CLOUD_DISK, claim="shop/data-db-0")]
        ),
        "the affected pod may be a new one": detached(
            waiting_pod("shop/old"), waiting_pod("shop/new", ago=MINUTE), words=[]
        ),
        "it waits for something else": detached(b.pod("shop/image", phase="Pending")),
    }.items():
        assert findings(snapshot) == [], why


MULTI_ATTACH = 'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) web-1'
UID = "uid of shop/db-0"


def test_what_the_cluster_says_is_not_called_a_lost_entry() -> None:
    words = replace(NOT_ATTACHED, exists=True, holders=(), shared=False, driver_registered=True)
    off, on = Holder("worker-2", ready=False), Holder("worker-3", ready=True)
    elsewhere, failing, no_driver = Confidence.ELSEWHERE, Confidence.FAILING, Confidence.NO_DRIVER
    for changes, confidence, said in (
        (
            {"holders": (on,)},
            elsewhere,
            "another node has it (Multi-Attach): worker-3; end the pod",
        ),
        (
            {"holders": (off, on), "exists": None},
            elsewhere,
            "worker-2 (not Ready), worker-3; end the pod that uses it on worker-2; if that machine",
        ),
        ({"attach_error": "no space"}, failing, "as its VolumeAttachment says: no space; "),
        ({"detach_error": "busy"}, failing, "as its VolumeAttachment says: busy; "),
        ({"failed": True}, failing, "as its VolumeAttachment says: an attach error; "),
        ({"deleting": True}, failing, "is being deleted, and remains: the detach of an earlier"),
        ({"deleting": True, "detach_error": "busy"}, failing, "VolumeAttachment says: busy; "),
        (
            {"driver_registered": False, "attach_error": "no such driver"},
            no_driver,
            "its CSI driver disk.example.com is not registered on this node; look at the pod",
        ),
    ):
        found = the(detached(waiting_pod(), words=[replace(words, **changes)]))
        assert verdict(found) == (confidence, Severity.INFO, "shop/db-0")
        assert found.message.startswith(f"{confidence.value}: {DISK} is in the node's volumesInUse")
        assert said in found.message
        for never in ("known bug", "restores such entries", "cordon", "one of:"):
            assert never not in found.message
        soon = waiting_pod(ago=9 * MINUTE)
        assert not findings(detached(soon, words=[replace(words, **changes)]))
    found = the(detached(waiting_pod(), words=[replace(words, holders=(off,))]))
    taint = "kubectl taint node worker-2 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
    assert taint in found.message
    found = the(detached(waiting_pod(), words=[replace(words, holders=(on,), shared=None)]))
    assert "(unverified: its access mode may allow several nodes)" in found.message
    # The same, by the words of Events.
    for entry, message, confidence, said in (
        ("volume_used_elsewhere", MULTI_ATTACH, elsewhere, f"as an Event says: {MULTI_ATTACH}; "),
        ("attach_failed", "no quota", failing, "as its Event says: no quota; "),
        ("csi_driver_missing", "driver name", no_driver, "is not registered on this node; "),
    ):
        event = VolumeEvent(UID, entry, message, "pvc-1")
        answers = replace(
            attachments(replace(NOT_ATTACHED, persistent_volume="pvc-1")), events=(event,)
        )
        found = the(detached(waiting_pod(), attachments=answers))
        assert (found.confidence, found.severity) == (confidence, Severity.INFO)
        assert said in found.message
        # One about another volume of the pod, or about another pod, says nothing of this one.
        for other in (replace(event, persistent_volume="pvc-2"), replace(event, pod_uid="another")):
            found = the(detached(waiting_pod(), attachments=replace(answers, events=(other,))))
            assert found.confidence is Confidence.PROBABLE
    # Recordings of earlier releases have no words.
    failed = attachments(NOT_ATTACHED, failed_pods=[UID])
    for answers in (failed, replace(failed, volumes=())):
        found = the(detached(waiting_pod(), attachments=answers))
        assert (found.confidence, found.severity) == (failing, Severity.INFO)
        assert "one of: another node has it (Multi-Attach); attaching" in found.message
    # A volume for several nodes may be on another one.
    shared = replace(words, holders=(on,), shared=True)
    assert the(detached(waiting_pod(), words=[shared])).confidence is Confidence.PROBABLE


def test_an_event_explains_nothing_where_the_cluster_shows_that_it_is_over() -> None:
    words = Attachment(DISK, claim="shop/data-db-0", attached=False, persistent_volume="pvc-1")
    driver = VolumeEvent(UID, "csi_driver_missing", "driver name d not found", "pvc-1")
    for registered, confidence in (
        (None, Confidence.NO_DRIVER),
        (False, Confidence.NO_DRIVER),
        (True, Confidence.PROBABLE),
    ):
        read = attachments(replace(words, driver_registered=registered))
        found = the(detached(waiting_pod(), attachments=replace(read, events=(driver,))))
        assert found.confidence is confidence
    # If its claim cannot be read, it is unknown which pod needs it.
    failed = VolumeEvent(UID, "attach_failed", "no quota", "pvc-1")
    for attached, confidence in ((False, Confidence.FAILING), (True, Confidence.PROBABLE)):
        read = attachments(replace(words, claim=None, exists=True, attached=attached))
        answers = replace(read, events=(failed,), failed_pods=(UID,))
        found = the(detached(waiting_pod(), attachments=answers))
        assert found.confidence is confidence
    assert "; its entry was lost (" in found.message


def test_without_the_right_to_know_every_possible_reason_is_named() -> None:
    elsewhere, lost = "another node has it (Multi-Attach)", "its entry was lost ("
    failing, no_driver = "attaching or detaching it fails", "its CSI driver is not registered"
    gone = "a node that was deleted still has it"
    not_asked = "no kube-controller-manager attaches it"
    unread = ("get volumeattachments", "list events")
    unknown = Attachment(DISK, claim="shop/data-db-0")
    in_tree = replace(unknown, volume=CLOUD_DISK)
    pending = replace(unknown, attached=False, exists=True)
    recent, old = 20 * MINUTE, 90 * MINUTE
    for attachment, ago, refused, reasons in (
        (unknown, recent, unread, {elsewhere, failing, no_driver, lost}),
        (unknown, old, (), {elsewhere, failing, no_driver, lost}),  # an Event would be gone
        (unknown, recent, (), {elsewhere, lost}),
        (replace(unknown, holders=(), driver_registered=True), old, (), {gone, failing, lost}),
        (in_tree, old, (), {elsewhere, failing, lost}),
        (replace(in_tree, holders=()), old, (), {failing, lost}),
        (replace(in_tree, holders=()), recent, (), {lost}),
        (pending, old, (), {elsewhere, failing, no_driver}),
        (replace(pending, holders=(), driver_registered=True), recent, (), {failing}),
        # There is no VolumeAttachment: the controller does not try, as while another node has it.
        (
            replace(unknown, attached=False, exists=False),
            old,
            (),
            {elsewhere, not_asked, no_driver},
        ),
        (replace(unknown, attached=False, exists=False, holders=()), recent, (), {gone, not_asked}),
    ):
        waits = waiting_pod("shop/db-0", attachment.volume, ago=ago)
        answers = attachments(attachment, not_requested=refused)
        using = [node_using(attachment.volume)]
        snapshot = detached(waits, node=using, attachments=answers)
        for version, has_bug in (("v1.20.2", True), ("v1.31.4", False)):
            found = the(replace(snapshot, server_version=version))
            # Something else is wrong if a version that has the fix seems to have lost an entry.
            expected = reasons if has_bug or reasons != {lost} else {failing, lost}
            is_certain = expected == {lost}
            severity = Severity.CRITICAL if is_certain else Severity.WARNING
            assert (found.confidence, found.severity) == (Confidence.PROBABLE, severity)
            possible = (elsewhere, gone, not_asked, failing, no_driver, lost)
            assert {reason for reason in possible if reason in found.message} == expected
            assert ("one of: " in found.message) is (len(expected) > 1)
            assert ("cordon the node" in found.message) is (has_bug and lost in expected)
            decides = "kubectl describe pod -n shop db-0 (Events live for an hour)"
            assert (decides in found.message) is not is_certain
            is_csi = attachment.volume == DISK
            shown = is_csi and not is_certain
            assert ("kubectl get volumeattachments" in found.message) is shown
            shown = not is_csi and not is_certain
            assert ("custom-columns='NODE:.metadata.name,ATTACHED" in found.message) is shown


def test_events_that_were_read_exclude_what_they_would_say() -> None:
    waits = waiting_pod(ago=20 * MINUTE)
    refused = ["get persistentvolumeclaims", "get volumeattachments"]
    unknown = Attachment(DISK, claim="shop/data-db-0", holders=())
    for events_read, said in ((True, False), (False, True), (None, True)):
        answers = replace(attachments(unknown, not_requested=refused), events_read=events_read)
        message = the(detached(waits, attachments=answers)).message
        assert ("attaching or detaching it fails" in message) is said
        assert ("its CSI driver is not registered" in message) is said


def test_unavailable_data_is_never_treated_as_attached() -> None:
    for source in ("node", "processes", "pods", "containers", "attachments", "mounts"):
        _, gap = findings_and_gap(DETECTOR, without(detached(waiting_pod()), source))
        assert gap.why == f"{source}: it gave no word"
        assert source == "node" or findings(without(node(waiting_pod()), source)) == [], (
            "nothing is missing"
        )
    no_kubelet = detached(
        waiting_pod(), mounts=[Mount(DISK)], processes=[b.processes(kubelet=None)]
    )
    assert b.gap_of(DETECTOR, no_kubelet).startswith("processes: no kubelet found")
    # Disabled sources disable the check after what is certain.
    found, gap = findings_and_gap(DETECTOR, b.without_api(detached(waiting_pod())))
    assert (found, gap.chosen) == ([], True)
    snapshot = detached(waiting_pod(), mounts=NotRequested("mounts", "--kubelet-dir=off"))
    (finding,), gap = findings_and_gap(DETECTOR, snapshot)
    assert (finding.confidence, gap.chosen) == (Confidence.CONFIRMED, True)
