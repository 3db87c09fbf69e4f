"""What is asked about volumes that are missing from the node's status, and what is read from the answers."""

import itertools
import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import pytest

from agent.model.snapshot import Pod, Snapshot, Unavailable
from agent.model.volumes import Attachment
from tests.builders import CLOUD_DISK, DISK, attachments, node, node_using, waiting_pod
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
REFERENCE: Final = {"claimRef": {"namespace": "shop", "name": "data-db-0"}}
OBJECTS: Final[dict[str, Any]] = {
    ATTACHMENT: {
        "spec": {"attacher": "disk.example.com", "source": {"persistentVolumeName": "pvc-1"}},
        "status": {"attached": True},
    },
    VOLUME: {"spec": {"csi": {"driver": "disk.example.com", "volumeHandle": "vol-7"}, **REFERENCE}},
    CLAIM: {"spec": {"volumeName": "pvc-1"}},
    EVENTS: {"metadata": {"resourceVersion": "7"}, "items": []},
}
PATHS: Final = {"ATTACHMENT": ATTACHMENT, "VOLUME": VOLUME, "CLAIM": CLAIM, "EVENTS": EVENTS}
Ask = Callable[..., tuple[Any, list[str]]]
WAITS: Final = waiting_pod()
REFUSED: Final = http(json.dumps({"message": "events is forbidden"}), "403 Forbidden")
ABSENT: Final = http(json.dumps({"message": "not found"}), "404 Not Found")


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
    assert found.known() == attachments(Attachment(DISK, attached=True, claim="shop/data-db-0"))
    assert asked == [ATTACHMENT, VOLUME, EVENTS]
    (target,) = cluster.server.requested("/events")
    assert target == (
        f"{EVENTS}?fieldSelector=involvedObject.uid%3Duid%20of%20shop/db-0%2Creason%3DFailedAttachVolume&limit=500"
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
        assert found.known().volumes == (Attachment(DISK, attached, failed, "shop/data-db-0"),)
    found, _ = ask(EVENTS=OBJECTS[EVENTS] | {"items": [{"reason": "FailedAttachVolume"}]})
    assert found.known().failed_pods == (WAITS.uid,)


def test_without_an_attachment_the_claim_leads_to_the_volume(ask: Ask) -> None:
    cloud = {"spec": {"awsElasticBlockStore": {"volumeID": "aws://zone-a/vol-8"}}}
    migrated, claim = "kubernetes.io/csi/ebs.csi.aws.com^vol-8", "shop/data-db-0"
    found, asked = ask(ATTACHMENT=ABSENT)
    assert found.known() == attachments(Attachment(DISK, attached=False, claim=claim))
    assert asked == [ATTACHMENT, CLAIM, VOLUME, EVENTS]
    found, asked = ask(CLOUD_DISK, VOLUME=cloud)
    assert found.known() == attachments(Attachment(CLOUD_DISK, claim=claim))
    assert asked == [CLAIM, VOLUME, EVENTS]
    found, _ = ask(migrated, VOLUME=cloud)
    assert found.known().volumes == (Attachment(migrated, attached=False, claim=claim),)
    found, _ = ask(CLOUD_DISK)
    assert found.known().volumes == (Attachment(CLOUD_DISK), Attachment(DISK, claim=claim)), (
        "another volume"
    )
    unbound: Any
    for unbound in ({"spec": {}}, {"spec": None}, ABSENT):
        assert ask(CLOUD_DISK, CLAIM=unbound)[0].known() == attachments(Attachment(CLOUD_DISK))


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
        (connection,) = server.connections
        assert len(connection) == 64
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
        assert (found.known(), asked) == (attachments(Attachment(CLOUD_DISK)), [EVENTS])
        found, asked = ask(CLOUD_DISK, CLAIM={"spec": {"volumeName": name}})
        assert (found.known(), asked) == (attachments(Attachment(CLOUD_DISK)), [CLAIM, EVENTS])


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
