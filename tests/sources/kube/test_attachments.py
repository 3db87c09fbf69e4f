"""Requests about volumes, over the real transport: objects, errors, and invalid answers."""

import json
from collections.abc import Callable
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from agent.model.snapshot import Known, Pod, Unavailable
from agent.model.volumes import Attachment, Attachments
from agent.sources.kube.attachments import MAX_REQUESTS, AttachmentsSource
from agent.sources.source_error import SourceError
from tests.builders import CLOUD_DISK, DISK, attachments, waiting_pod
from tests.sources.kube.connections import connect, inquirer, reading_of
from tests.wire import HTML, Answer, FakeServer, Request, http, kubeconfig

NAME: Final = f"csi-{sha256(b'vol-7disk.example.comworker-1').hexdigest()}"
ATTACHMENT: Final = f"/apis/storage.k8s.io/v1/volumeattachments/{NAME}"
VOLUME: Final = "/api/v1/persistentvolumes/pvc-1"
CLAIM: Final = "/api/v1/namespaces/shop/persistentvolumeclaims/data-db-0"
EVENTS: Final = "/api/v1/namespaces/shop/events"
OBJECTS: Final[dict[str, Any]] = {
    ATTACHMENT: {
        "kind": "VolumeAttachment",
        "metadata": {"name": NAME},
        "spec": {"attacher": "disk.example.com", "source": {"persistentVolumeName": "pvc-1"}},
        "status": {"attached": True},
    },
    VOLUME: {
        "kind": "PersistentVolume",
        "spec": {
            "csi": {"driver": "disk.example.com", "volumeHandle": "vol-7"},
            "claimRef": {"namespace": "shop", "name": "data-db-0"},
        },
    },
    CLAIM: {"kind": "PersistentVolumeClaim", "spec": {"volumeName": "pvc-1"}},
    EVENTS: {"kind": "EventList", "metadata": {"resourceVersion": "7"}, "items": []},
}
WAITS: Final = waiting_pod()
REFUSED = object()


class Server:
    """A fake API server with a few objects; REFUSED gets a 403, bytes are sent as they are."""

    def __init__(self, objects: dict[str, Any]) -> None:
        self._objects = objects
        self.fake = FakeServer(self._answer)

    def _answer(self, request: Request) -> Answer:
        answer = self._objects.get(request.path)
        if answer is REFUSED:
            return [http(json.dumps({"message": "events is forbidden"}), "403 Forbidden")]
        if answer is None:
            return [http(json.dumps({"message": "not found"}), "404 Not Found")]
        return [answer if isinstance(answer, bytes) else http(json.dumps(answer))]


Ask = Callable[..., Any]


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """Return a function that queries a server with these additional objects, and the requests it got."""

    def asking(*volumes: str, pods: tuple[Pod, ...] = (WAITS,), **objects: Any) -> Any:
        named = {globals()[name]: answer for name, answer in objects.items()}
        with Server(OBJECTS | named).fake as server:
            asked = source(tmp_path, server)
            read = reading_of("attachments", lambda: asked.read(volumes or (DISK,), pods))
        return read, [request.path for request in server.requests]

    return asking


def source(at: Path, server: FakeServer, clock: Callable[[], float] = lambda: 0.0) -> AttachmentsSource:
    api = connect(kubeconfig(at / "kubeconfig", server.url), 0.5)
    return AttachmentsSource(inquirer(api.get), "worker-1", clock)


def the(read: Any) -> Attachments:
    one = read.known()
    assert isinstance(one, Attachments)
    return one


def test_a_csi_volume_has_its_attachment_and_claim(ask: Ask) -> None:
    read, asked = ask()
    assert the(read) == attachments(Attachment(DISK, attached=True, claim="shop/data-db-0"))
    assert asked == [ATTACHMENT, VOLUME, EVENTS]


def test_only_events_of_the_waiting_pod_are_requested(tmp_path: Path) -> None:
    with Server(OBJECTS).fake as server:
        source(tmp_path, server).read((DISK,), (WAITS,))
    (target,) = server.requested("/events")
    assert target == (
        f"{EVENTS}?fieldSelector=involvedObject.uid%3Duid%20of%20shop/db-0%2Creason%3DFailedAttachVolume&limit=500"
    ), "before 1.24 a small limit makes the API server ask etcd once for each event of the namespace"


def test_an_attachment_has_its_status(ask: Ask) -> None:
    for changes, attached, failed in (
        ({"status": {"attached": False}}, False, False),
        ({"status": {"attached": False, "attachError": {"message": "no"}}}, False, True),
        ({"status": {"attached": True, "detachError": {"message": "no"}}}, True, False),
        ({"metadata": {"deletionTimestamp": "2026-03-26T19:00:00Z"}}, False, False),
        ({"status": {"attached": "true"}}, False, False),
        ({"status": None}, False, False),
    ):
        read, _ = ask(ATTACHMENT=OBJECTS[ATTACHMENT] | changes)
        assert the(read).volumes == (Attachment(DISK, attached, failed, "shop/data-db-0"),)


def test_without_an_attachment_the_claim_is_requested(ask: Ask) -> None:
    read, asked = ask(ATTACHMENT=None)
    assert the(read) == attachments(Attachment(DISK, attached=False, claim="shop/data-db-0"))
    assert asked == [ATTACHMENT, CLAIM, VOLUME, EVENTS]


def test_an_event_of_the_pod_is_read(ask: Ask) -> None:
    read, _ = ask(EVENTS=OBJECTS[EVENTS] | {"items": [{"reason": "FailedAttachVolume"}]})
    assert the(read).failed_pods == (WAITS.uid,)


def test_a_volume_without_csi_is_found_by_its_claim(ask: Ask) -> None:
    described = {"spec": {"awsElasticBlockStore": {"volumeID": "aws://zone-a/vol-8"}}}
    read, asked = ask(CLOUD_DISK, VOLUME=described)
    assert the(read) == attachments(Attachment(CLOUD_DISK, claim="shop/data-db-0"))
    assert asked == [CLAIM, VOLUME, EVENTS]


def test_a_claim_bound_to_another_volume_is_reported(ask: Ask) -> None:
    read, _ = ask(CLOUD_DISK)
    assert the(read).volumes == (Attachment(CLOUD_DISK), Attachment(DISK, claim="shop/data-db-0"))


def test_an_unbound_claim_has_no_volume(ask: Ask) -> None:
    answer: Any
    for answer in ({"spec": {}}, {"spec": None}, None):
        assert the(ask(CLOUD_DISK, CLAIM=answer)[0]) == attachments(Attachment(CLOUD_DISK))


def test_a_missing_permission_is_reported_and_tried_once(ask: Ask) -> None:
    for refused, missing in (
        (["EVENTS"], ["list events"]),
        (["ATTACHMENT"], ["get volumeattachments"]),
        (["VOLUME"], ["get persistentvolumes"]),
        (
            ["ATTACHMENT", "CLAIM", "VOLUME", "EVENTS"],
            ["get volumeattachments", "get persistentvolumeclaims", "list events"],
        ),
    ):
        read, _ = ask(**dict.fromkeys(refused, REFUSED))
        assert isinstance(read, Known)
        assert list(the(read).not_requested) == missing
    pods = (waiting_pod(claims=["a", "b", "c"]), waiting_pod("shop/other"))
    _, asked = ask(CLOUD_DISK, pods=pods, **dict.fromkeys(["CLAIM", "EVENTS"], REFUSED))
    assert asked.count(EVENTS) == 1


def test_the_number_of_requests_is_bounded(ask: Ask) -> None:
    pods = tuple(waiting_pod(f"shop/db-{n}") for n in range(2 * MAX_REQUESTS))
    read, asked = ask(pods=pods)
    assert len(asked) == MAX_REQUESTS
    assert the(read).not_requested == (f"more than {MAX_REQUESTS} objects",)


@pytest.mark.parametrize("place", ["ATTACHMENT", "VOLUME", "EVENTS"])
def test_an_invalid_answer_is_never_treated_as_attached(ask: Ask, place: str) -> None:
    for answer in (
        http("[]"), http("null"), http("7"), http("{"), http('"text"'), http("[" * 100_000),
        http('{"spec": 7, "status": 7, "items": 7, "metadata": 7}'), http(HTML, kind="text/html"),
        http("", "500 Internal Server Error"), http("", "401 Unauthorized"), b"", http("{}")[:-1],
    ):  # fmt: skip
        read, _ = ask(**{place: answer})
        assert isinstance(read, Unavailable)
        assert (read.source, read.why[:12]) == ("attachments", "API server: ")
        assert len(read.why) < 300


def test_the_same_request_is_sent_once_a_minute_and_a_new_one_at_once(tmp_path: Path) -> None:
    seconds = count(step=25)
    with Server(OBJECTS).fake as server:
        asking = source(tmp_path, server, lambda: float(next(seconds)))
        other = waiting_pod("shop/other")
        asked = []
        for pods in ((WAITS,), (WAITS,), (WAITS, other), (other,), (WAITS,), (WAITS,)):
            before = len(server.requests)
            asking.read((DISK,), pods)
            asked.append(len(server.requests) - before)
    assert [bool(one) for one in asked] == [True, False, True, False, False, True]


def test_a_failed_request_is_retried_after_a_minute_so_that_not_every_sync_waits(tmp_path: Path) -> None:
    seconds = count(step=25)
    with Server(OBJECTS | {ATTACHMENT: http("", "500 Internal Server Error")}).fake as server:
        asking = source(tmp_path, server, lambda: float(next(seconds)))
        asked = []
        for _ in range(4):
            with pytest.raises(SourceError):
                asking.read((DISK,), (WAITS,))
            asked.append(len(server.requested(ATTACHMENT)))
    assert asked == [1, 1, 1, 2]


def test_an_invalid_object_name_causes_no_other_request(ask: Ask) -> None:
    for name in ("../../secrets/key", "..", "a/status", "a?watch=1", "a\n", "A b", "", "x" * 254):
        read, asked = ask(CLOUD_DISK, pods=(waiting_pod(claims=[name]),))
        assert (read.known(), asked) == (attachments(Attachment(CLOUD_DISK)), [EVENTS])
        read, asked = ask(CLOUD_DISK, CLAIM={"spec": {"volumeName": name}})
        assert (read.known(), asked) == (attachments(Attachment(CLOUD_DISK)), [CLAIM, EVENTS])


def test_a_claim_of_a_migrated_driver_is_mapped_to_its_volume(ask: Ask) -> None:
    migrated = "kubernetes.io/csi/ebs.csi.aws.com^vol-8"
    read, _ = ask(migrated, VOLUME={"spec": {"awsElasticBlockStore": {"volumeID": "aws://zone-a/vol-8"}}})
    assert the(read).volumes == (Attachment(migrated, attached=False, claim="shop/data-db-0"),)
