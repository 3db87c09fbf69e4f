"""What is asked about volumes that are missing from the node's status, and what is read from the answers."""

import itertools
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import pytest

from agent.model.snapshot import Pod, Snapshot, Unavailable
from agent.model.volumes import Attachment, Attachments, Holder
from tests import builders as b
from tests.builders import CLOUD_DISK, DISK, node, node_using, waiting_pod
from tests.sources.kube.conftest import Cluster
from tests.sources.kube.connections import sources_of_command
from tests.sources.reading import read
from tests.wire import (
    HTML,
    Answer,
    KeepAliveServer,
    Request,
    established,
    http,
    kubeconfig,
    until,
)

NAME: Final = f"csi-{sha256(b'vol-7disk.example.comworker-1').hexdigest()}"
ATTACHMENT: Final = f"/apis/storage.k8s.io/v1/volumeattachments/{NAME}"
VOLUME: Final = "/api/v1/persistentvolumes/pvc-1"
CLAIM: Final = "/api/v1/namespaces/shop/persistentvolumeclaims/data-db-0"
EVENTS: Final = "/api/v1/namespaces/shop/events"
DRIVERS: Final = "/apis/storage.k8s.io/v1/csinodes/worker-1"
NODES: Final = "/api/v1/nodes"
REFERENCE: Final = {"claimRef": {"namespace": "shop", "name": "data-db-0"}}
OBJECTS: Final[dict[str, Any]] = {
    ATTACHMENT: {
        "spec": {"attacher": "disk.example.com", "source": {"persistentVolumeName": "pvc-1"}},
        "status": {"attached": True},
    },
    VOLUME: {"spec": {"csi": {"driver": "disk.example.com", "volumeHandle": "vol-7"}, **REFERENCE}},
    CLAIM: {"spec": {"volumeName": "pvc-1"}},
    EVENTS: {"metadata": {"resourceVersion": "7"}, "items": []},
    DRIVERS: {"spec": {"drivers": [{"name": "disk.example.com", "nodeID": "1"}]}},
    NODES: {"metadata": {"resourceVersion": "7"}, "items": []},
}
PATHS: Final = {
    "ATTACHMENT": ATTACHMENT,
    "VOLUME": VOLUME,
    "CLAIM": CLAIM,
    "EVENTS": EVENTS,
    "DRIVERS": DRIVERS,
    "NODES": NODES,
}
Ask = Callable[..., tuple[Any, list[str]]]
WAITS: Final = waiting_pod()
UNBOUND: Final = Attachment(CLOUD_DISK, holders=())
REFUSED: Final = http(json.dumps({"message": "events is forbidden"}), "403 Forbidden")
ABSENT: Final = http(json.dumps({"message": "not found"}), "404 Not Found")


def attachments(*words: Attachment) -> Attachments:
    return replace(b.attachments(*words), events_read=True)


def missing(*volumes: str, pods: tuple[Pod, ...] = (WAITS,)) -> Snapshot:
    """Return a node whose status misses volumes, for which pods wait."""
    return node(node=[node_using(*volumes)], pods=pods)


@pytest.fixture
def ask(cluster: Cluster) -> Ask:
    """Return what asks about volumes with some objects replaced, and returns what was read and requested."""

    def asking(*volumes: str, pods: Any = (WAITS,), **objects: Any) -> tuple[Any, list[str]]:
        named = OBJECTS | {PATHS[name]: answer for name, answer in objects.items()}
        cluster.answers = {
            path: answer if isinstance(answer, bytes) else http(json.dumps(answer))
            for path, answer in named.items()
        }
        cluster.forget()
        return cluster.read("attachments", missing(*(volumes or (DISK,)), pods=pods)), cluster.asked

    return asking


def test_a_csi_volume_has_its_attachment_and_claim_and_a_pod_its_failure(
    ask: Ask, cluster: Cluster
) -> None:
    found, asked = ask()
    known = Attachment(
        DISK,
        attached=True,
        claim="shop/data-db-0",
        exists=True,
        persistent_volume="pvc-1",
    )
    assert found.known() == attachments(known)
    assert asked == [ATTACHMENT, VOLUME, EVENTS]
    (target,) = cluster.server.requested("/events")
    assert target == (
        f"{EVENTS}?fieldSelector=involvedObject.uid%3Duid%20of%20shop/db-0&limit=500"
    ), (
        "before 1.24 a small limit makes the API server ask etcd once for each event of the namespace"
    )
    for changes, attached, failed in (
        ({"status": {"attached": False}}, False, False),
        ({"status": {"attached": False, "attachError": {"message": "no"}}}, False, True),
        ({"status": {"attached": True, "detachError": {"message": "no"}}}, True, False),
        ({"metadata": {"deletionTimestamp": "2026-03-26T19:00:00Z"}}, False, False),
        ({"status": {"attached": "true"}}, False, False),
        ({"status": None}, False, False),
    ):
        found, _ = ask(ATTACHMENT=OBJECTS[ATTACHMENT] | changes)
        (read,) = found.known().volumes
        assert (read.attached, read.failed, read.claim) == (attached, failed, "shop/data-db-0")
    found, _ = ask(EVENTS=OBJECTS[EVENTS] | {"items": [{"reason": "FailedAttachVolume"}]})
    assert found.known().failed_pods == (WAITS.uid,)
    assert found.known().events_read is True
    assert ask(EVENTS=REFUSED)[0].known().events_read is False


def test_without_an_attachment_the_claim_leads_to_the_volume(ask: Ask) -> None:
    cloud = {"spec": {"awsElasticBlockStore": {"volumeID": "aws://zone-a/vol-8"}}}
    migrated, claim = "kubernetes.io/csi/ebs.csi.aws.com^vol-8", "shop/data-db-0"
    bound = Attachment(DISK, claim=claim, persistent_volume="pvc-1")
    nowhere = replace(bound, holders=())
    found, asked = ask(ATTACHMENT=ABSENT)
    assert found.known() == attachments(
        replace(nowhere, attached=False, exists=False, driver_registered=True)
    )
    assert asked == [ATTACHMENT, CLAIM, VOLUME, EVENTS, DRIVERS, NODES]
    found, asked = ask(CLOUD_DISK, VOLUME=cloud)
    assert found.known() == attachments(replace(nowhere, volume=CLOUD_DISK))
    assert asked == [CLAIM, VOLUME, EVENTS, NODES]
    found, _ = ask(migrated, VOLUME=cloud)
    (read,) = found.known().volumes
    assert (read.volume, read.attached, read.claim) == (migrated, False, claim)
    assert read.driver_registered is False
    found, _ = ask(CLOUD_DISK)
    assert found.known().volumes == (UNBOUND, bound), "another volume"
    # A vendor's in-tree plugin is called like its source, and the ID is one of the fields.
    vendor = "kubernetes.io/qcloud-cbs/disk-7"
    source = {
        "qcloudCbs": {"cbsDiskId": "disk-7", "fsType": "ext4"},
        "accessModes": ["ReadWriteOnce"],
    }
    found, _ = ask(vendor, VOLUME={"spec": source})
    assert found.known() == attachments(replace(nowhere, volume=vendor, shared=False))
    for other in ({"nfs": {"server": "disk-7"}}, {"claimRef": {"name": "disk-7"}}):
        found, _ = ask(vendor, VOLUME={"spec": other})
        assert found.known() == attachments(replace(UNBOUND, volume=vendor))
    unbound: Any
    for unbound in ({"spec": {}}, {"spec": None}, ABSENT):
        assert ask(CLOUD_DISK, CLAIM=unbound)[0].known() == attachments(UNBOUND)


def node_with(
    name: str, *, ready: bool = True, in_use: Iterable[str] = (), attached: Iterable[str] = ()
) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "uid": name},
        "status": {
            "conditions": [{"type": "Ready", "status": "True" if ready else "Unknown"}],
            "volumesInUse": list(in_use),
            "volumesAttached": [{"name": volume} for volume in attached],
        },
    }


def test_other_nodes_that_have_the_volume_are_found_with_the_right_to_list_nodes(
    ask: Ask, cluster: Cluster
) -> None:
    refused = dict.fromkeys(["ATTACHMENT", "CLAIM", "EVENTS", "DRIVERS"], REFUSED)
    nodes = {
        "metadata": {},
        "items": [
            node_with("worker-1", in_use=[DISK]),
            node_with("worker-2", attached=[DISK, CLOUD_DISK], ready=False),
            node_with("worker-3", in_use=[DISK], attached=[DISK]),
            node_with("worker-4", attached=[CLOUD_DISK]),
            node_with("worker-5", in_use=[DISK]),
        ],
    }
    found, asked = ask(NODES=nodes, **refused)
    (read,) = found.known().volumes
    assert read.holders == (Holder("worker-2", ready=False), Holder("worker-3", ready=True))
    assert (read.exists, read.driver_registered, read.shared) == (None, None, None)
    assert "list nodes" not in found.known().not_requested
    assert asked[-1] == NODES
    (target,) = cluster.server.requested(NODES)
    assert target == f"{NODES}?limit=50"
    # Where a volume is only in use, its pod may wait for it as well.
    waits_too = {"metadata": {}, "items": [node_with("worker-5", in_use=[DISK])]}
    assert ask(NODES=waits_too, **refused)[0].known().volumes[0].holders is None
    # Whoever has waited for less than ten minutes may wait for an attach that is under way.
    soon = (waiting_pod(ago=timedelta(minutes=9)),)
    assert NODES not in ask(pods=soon, NODES=nodes, **refused)[1]
    # One that is attached, or whose error is known, needs no explanation.
    failed = {"status": {"attached": False, "attachError": {"message": "no\nspace"}}}
    found, asked = ask(ATTACHMENT=OBJECTS[ATTACHMENT] | failed, NODES=nodes)
    assert NODES not in asked
    (read,) = found.known().volumes
    assert (read.attach_error, read.deleting) == ("no space", False)
    deleting = {
        "metadata": {"deletionTimestamp": "2026-03-26T19:00:00Z"},
        "status": {"attached": True, "detachError": {"message": "busy"}},
    }
    found, _ = ask(ATTACHMENT=OBJECTS[ATTACHMENT] | deleting)
    (read,) = found.known().volumes
    assert (read.attached, read.detach_error, read.deleting) == (False, "busy", True)
    # What cannot be listed is unknown, and hides nothing else.
    for answer, rights in (
        (REFUSED, ("list nodes",)),
        (http("", "500 Internal Server Error"), ()),
        (http('{"items": 7}'), ()),
        (http('{"metadata": {"continue": "more"}, "items": []}'), ()),  # too many pages
    ):
        found, _ = ask(ATTACHMENT=ABSENT, NODES=answer)
        assert found.known().volumes[0].holders is None
        assert found.known().not_requested == rights
    # A large cluster has the same trouble on many nodes at once: each would list all of them.
    for left, pages in (({"remainingItemCount": 4_950}, 1), ({}, 20)):
        large = {"metadata": {"continue": "more", **left}, "items": []}
        found, _ = ask(ATTACHMENT=ABSENT, NODES=large)
        assert found.known().volumes[0].holders is None
        assert len(cluster.server.requested(NODES)) == pages
    # Servers before 1.17 have no CSINode.
    found, _ = ask(ATTACHMENT=ABSENT, DRIVERS=ABSENT)
    assert found.known().volumes[0].driver_registered is None
    for spec, registered in (({}, False), ({"drivers": None}, False), ({"drivers": [{}]}, False)):
        found, _ = ask(ATTACHMENT=ABSENT, DRIVERS={"spec": spec})
        assert found.known().volumes[0].driver_registered is registered


def test_events_say_why_a_volume_is_not_attached(ask: Ask) -> None:
    attach, mount = "FailedAttachVolume", "FailedMount"
    missing = "driver name d not found in the list of registered CSI drivers"
    items = [
        {"reason": reason, "message": message, "lastTimestamp": f"2026-03-26T19:00:{number:02}Z"}
        for number, (reason, message) in enumerate(
            (
                (attach, 'AttachVolume.Attach failed for volume "pvc-1" : rpc error: code = 1'),
                (attach, 'AttachVolume.Attach failed for volume "pvc-1" : rpc error: code = 2'),
                (
                    attach,
                    'Multi-Attach error for volume "pvc-2" Volume is already used by pod(s) a',
                ),
                (
                    attach,
                    'Waiting for detach for volume "pvc-3" Volume is already used by pod(s) a',
                ),
                (attach, "words of a later release"),
                (mount, missing),
                (mount, "words of a later release"),
                ("FailedMapVolume", f'MapVolume failed for volume "pvc-5" : {missing}'),
                ("Pulled", 'Multi-Attach error for volume "pvc-4" Volume is already used'),
            )
        )
    ]
    found, _ = ask(EVENTS=OBJECTS[EVENTS] | {"items": list(reversed(items))})
    assert [(one.entry, one.persistent_volume) for one in found.known().events] == [
        ("attach_failed", "pvc-1"),
        ("volume_used_elsewhere", "pvc-2"),
        ("volume_used_elsewhere", "pvc-3"),
        ("attach_failed", ""),
        ("csi_driver_missing", ""),
        ("csi_driver_missing", "pvc-5"),
    ]
    assert found.known().events[0].message.endswith("rpc error: code = 2"), "the last one"
    assert {one.pod_uid for one in found.known().events} == {WAITS.uid}


def test_a_missing_permission_is_reported_and_tried_once_and_requests_and_their_time_are_bounded(
    ask: Ask, cluster: Cluster
) -> None:
    for refused, rights in (
        (["EVENTS"], ["list events"]),
        (["ATTACHMENT"], ["get volumeattachments"]),
        (["VOLUME"], ["get persistentvolumes"]),
        (
            ["ATTACHMENT", "CLAIM", "VOLUME", "EVENTS"],
            ["get volumeattachments", "get persistentvolumeclaims", "list events"],
        ),
    ):
        found, _ = ask(**dict.fromkeys(refused, REFUSED))
        assert list(found.known().not_requested) == rights
    pods = (waiting_pod(claims=["a", "b", "c"]), waiting_pod("shop/other"))
    _, asked = ask(CLOUD_DISK, pods=pods, **dict.fromkeys(["CLAIM", "EVENTS"], REFUSED))
    assert asked.count(EVENTS) == 1
    found, asked = ask(pods=tuple(waiting_pod(f"shop/db-{n}") for n in range(128)))
    assert len(asked) == 64
    assert found.known().not_requested == ("more than 64 objects",)
    answer = cluster.server.answers

    def slow(request: Request) -> Answer:
        cluster.seconds += 0.4
        return answer(request)

    cluster.server.answers = slow
    found, asked = ask(pods=(WAITS, waiting_pod("shop/other")))
    assert found == Unavailable("attachments", "API server: no complete response within 1 s")
    assert len(asked) == 3


def test_all_requests_of_an_inquiry_share_one_connection_which_is_closed_afterwards(
    tmp_path: Path,
) -> None:
    """Also with refusals among them: the attach controller is in trouble on many nodes at once."""
    refusals = itertools.cycle([ABSENT, http(json.dumps({"items": []})), http(HTML, "404 no")])
    with KeepAliveServer(lambda _: [next(refusals)]) as server:
        sources = sources_of_command(kubeconfig(tmp_path / "kubeconfig", server.url))
        volumes = [f"{DISK}-{number}" for number in range(100)]
        found = read(sources, "attachments", missing(*volumes))
        assert found.known().not_requested == ("more than 64 objects",)
        connection, of_nodes = server.connections
        assert (len(connection), len(of_nodes)) == (64, 1)
        port = int(server.address.rpartition(":")[2])
        until(lambda: not established(port), "it is closed")


def test_an_invalid_answer_is_never_treated_as_attached_and_an_invalid_name_causes_no_request(
    ask: Ask,
) -> None:
    for part in ("ATTACHMENT", "VOLUME", "EVENTS"):
        for answer in (
            http("[]"), http("null"), http("7"), http("{"), http('"text"'), http("[" * 100_000),
            http('{"spec": 7, "status": 7, "items": 7, "metadata": 7}'), http(HTML, kind="text/html"),
            http("", "500 Internal Server Error"), http("", "401 Unauthorized"), b"", http("{}")[:-1],
            http('{"a": "' + "x" * 4_200_000 + '"}'),
        ):  # fmt: skip
            found, _ = ask(**{part: answer})
            assert isinstance(found, Unavailable)
            assert found.why.startswith("API server: ")
            assert len(found.why) < 300
    for name in ("../../secrets/key", "..", "a/status", "a?watch=1", "a\n", "A b", "", "x" * 254):
        found, asked = ask(CLOUD_DISK, pods=(waiting_pod(claims=[name]),))
        assert (found.known(), asked) == (attachments(UNBOUND), [EVENTS, NODES])
        found, asked = ask(CLOUD_DISK, CLAIM={"spec": {"volumeName": name}})
        assert (found.known(), asked) == (attachments(UNBOUND), [CLAIM, EVENTS, NODES])


def test_the_same_is_asked_once_a_minute_also_after_a_failure_and_about_more_at_once(
    ask: Ask, cluster: Cluster
) -> None:
    other = waiting_pod("shop/other")
    ask()
    for cluster.seconds, pods, is_asked in (
        (59, (WAITS,), False),
        (59, (WAITS, other), True),
        (100, (other,), False),
        (118, (WAITS,), False),
        (119, (WAITS,), True),
    ):
        cluster.server.requests.clear()
        cluster.read("attachments", missing(DISK, pods=pods))
        assert bool(cluster.asked) == is_asked
    ask(ATTACHMENT=http("", "500 Internal Server Error"))
    for cluster.seconds, requests in ((119, 1), (178, 1), (179, 2)):
        assert isinstance(cluster.read("attachments", missing(DISK)), Unavailable)
        assert len(cluster.asked) == requests


def test_the_nodes_are_listed_every_ten_minutes_also_if_other_volumes_are_missing_by_then(
    ask: Ask, cluster: Cluster
) -> None:
    ask(CLOUD_DISK)
    later = "kubernetes.io/aws-ebs/aws://zone-a/vol-9"
    for cluster.seconds, volumes, lists, holders in (
        (61, (CLOUD_DISK,), 1, [()]),
        (122, (CLOUD_DISK, later), 1, [(), None]),
        (599, (later,), 1, [None]),
        (600, (CLOUD_DISK, later), 2, [(), ()]),
    ):
        found = cluster.read("attachments", missing(*volumes)).known()
        by_volume = {one.volume: one.holders for one in found.volumes}
        assert [by_volume[volume] for volume in volumes] == holders
        assert len(cluster.server.requested(NODES)) == lists
