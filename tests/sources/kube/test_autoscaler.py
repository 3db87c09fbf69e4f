"""Requests about the autoscaler, when and how often: over the real transport, with real status texts."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agent.model.registration import UNINITIALIZED, Autoscaler, Expected, Registration, Taint
from agent.model.snapshot import Known, Node, NotRequested, Reading, Unavailable
from agent.sources.kube.autoscaler import FAILED_AGAIN, NODES_AGAIN, STATUS, STATUS_AGAIN, AutoscalerClient, status
from agent.sources.kube.client import Query
from agent.sources.source_error import SourceError
from tests.builders import INSTANCE, last_seen, registration, worker
from tests.sources.kube.connections import connect, inquirer, reading_of
from tests.wire import HTML, Answer, FakeServer, Request, hang, http, kubeconfig

# As a cluster-autoscaler before 1.30 wrote it, and one since, of whose groups of nodes one is left each.
LINES = """\
Cluster-autoscaler status at 2023-11-29 13:34:29.001925665 +0000 UTC:
Cluster-wide:
  Health:      Healthy (ready=1 unready=0 (resourceUnready=0) notStarted=0 longNotStarted=0 registered=1 \
longUnregistered=3)
               LastProbeTime:      2023-11-29 13:34:28.808043334 +0000 UTC m=+1081389.237180180
               LastTransitionTime: 2023-11-21 22:52:15.452499092 +0000 UTC m=+423655.881636038
  ScaleUp:     InProgress (ready=1 registered=1)
               LastProbeTime:      2023-11-29 13:34:28.808043334 +0000 UTC m=+1081389.237180180
               LastTransitionTime: 2023-11-29 13:34:01.090096765 +0000 UTC m=+1081361.519233711
  ScaleDown:   NoCandidates (candidates=0)
               LastProbeTime:      2023-11-29 13:34:28.808043334 +0000 UTC m=+1081389.237180180
               LastTransitionTime: 2023-11-28 20:53:08.193145649 +0000 UTC m=+1021308.622282595

NodeGroups:
  Name:        pool-a
  Health:      Healthy (ready=0 unready=0 (resourceUnready=0) notStarted=1 longNotStarted=0 registered=1 \
longUnregistered=7 cloudProviderTarget=1 (minSize=1, maxSize=3))
"""
YAML = """\
autoscalerStatus: Running
clusterWide:
  health:
    lastProbeTime: "2026-09-15T04:05:52Z"
    lastTransitionTime: "2026-09-12T09:56:35Z"
    nodeCounts:
      longUnregistered: 1
      registered:
        notStarted: 0
        ready: 4
        total: 4
        unready:
          resourceUnready: 0
          total: 0
      unregistered: 2
    status: Healthy
  scaleDown:
    lastProbeTime: "2026-09-15T04:05:52Z"
    lastTransitionTime: "2026-09-15T03:24:59Z"
    status: NoCandidates
  scaleUp:
    lastProbeTime: "2026-09-15T04:05:52Z"
    lastTransitionTime: "2026-09-15T03:30:51Z"
    status: NoActivity
nodeGroups:
- health:
    cloudProviderTarget: 1
    maxSize: 2
    minSize: 0
    nodeCounts:
      longUnregistered: 5
      unregistered: 6
    status: Healthy
  name: pool-a
time: 2026-09-15 04:05:52.354884346 +0000 UTC
"""
# The order of its own tests, with the counts of an empty cluster.
TIME_FIRST = """\
time: "2023-11-24 04:28:19.546750398 +0000 UTC"
message: "TEST_MSG"
autoscalerStatus: "Running"
clusterWide:
  health:
    status: "Healthy"
    nodeCounts:
      registered:
        total: 11
        unready:
          total: 2
          resourceUnready: 1
      longUnregistered: 0
      unregistered: 0
"""
BEFORE_2018 = """\
Cluster-autoscaler status at 2017-08-04 14:43:40.552637077 +0000 UTC:
Cluster-wide:
  Health:      Healthy (ready=10 unready=0 notStarted=0 longNotStarted=0 registered=10)
"""


def test_the_text_status_before_1_30_is_read() -> None:
    assert status(LINES) == Autoscaler(long_unregistered=3, told=datetime(2023, 11, 29, 13, 34, 29, tzinfo=UTC))


def test_the_yaml_status_since_1_30_is_read() -> None:
    result = datetime(2026, 9, 15, 4, 5, 52, tzinfo=UTC)
    assert status(YAML) == Autoscaler(unregistered=2, long_unregistered=1, told=result)
    assert status(TIME_FIRST) == Autoscaler(
        unregistered=0, long_unregistered=0, told=datetime(2023, 11, 24, 4, 28, 19, tzinfo=UTC)
    )


def test_a_status_without_counts_is_reported() -> None:
    for text in (
        BEFORE_2018, "", "Cluster-autoscaler status at 2023-99-29 13:34:29.0 +0000 UTC:\nInitializing",
        "autoscalerStatus: Initializing\ntime: 2026-09-15 04:05:52 +0000 UTC\n", "clusterWide: 1", "[" * 500_000,
        "\x00",
    ):  # fmt: skip
        result = status(text)
        assert (result.unregistered, result.long_unregistered) == (None, None)
        assert result.why.startswith("configmap kube-system/cluster-autoscaler-status has no counts of nodes")
        assert len(result.why) < 200


def test_an_invalid_count_is_ignored() -> None:
    for invalid in ("true", "-1", "1.5", "9" * 5000, "null", "[]"):
        counts = f"      unregistered: {invalid}\n      longUnregistered: 4\n"
        result = status(f"clusterWide:\n  health:\n    nodeCounts:\n{counts}")
        assert (result.unregistered, result.long_unregistered, result.why) == (None, 4, "")


# Asking

NO_ID: Reading[Node | None] = Known(worker())
GONE: Reading[Node | None] = Known(None)
UNKNOWN: Reading[Registration] = Known(registration())


class Asked:
    """A cluster whose answers are written down here, and a clock that stands still."""

    def __init__(self, **answers: Any) -> None:
        self.questions: list[tuple[str, Query]] = []
        self.now = 0.0
        self.answers = answers
        self.cluster = AutoscalerClient("worker-1", inquirer(self._get), lambda: self.now)

    def _get(self, path: str, query: Query) -> bytes:
        self.questions.append((path, query))
        answer = self.answers["status" if path == STATUS else "nodes"]
        if isinstance(answer, Exception):
            raise answer
        return json.dumps(answer).encode()

    def read(self, node: Reading[Node | None] = NO_ID, known: Reading[Registration] = UNKNOWN) -> Reading[Autoscaler]:
        return reading_of("autoscaler", lambda: self.cluster.read(node, known))

    @property
    def paths(self) -> list[str]:
        return [path.rpartition("/")[2] for path, _ in self.questions]


def listed(*ids: str) -> dict[str, Any]:
    own: dict[str, Any] = {"metadata": {"name": "worker-1"}, "spec": {}}
    others = [{"metadata": {"name": f"other-{n}"}, "spec": {"providerID": one}} for n, one in enumerate(ids)]
    return {"metadata": {"resourceVersion": "9", "continue": "more"}, "items": [own, *others]}


CONFIGMAP = {"metadata": {}, "data": {"status": YAML}}


def test_without_a_reason_no_request_is_sent() -> None:
    off = NotRequested("node", "--api=off"), NotRequested("registration", "--api=off")
    cases: tuple[tuple[Reading[Node | None], Reading[Registration], str], ...] = (
        (Known(worker(provider_id=INSTANCE)), UNKNOWN, "the node is registered"),
        (NO_ID, Known(registration(expected=Expected.IGNORED)), "--provider-id=ignored"),
        (GONE, UNKNOWN, "there is no Node named worker-1, and no evidence that there was one"),
        (Unavailable("node", "timed out"), UNKNOWN, "whether the node is registered is not known: timed out"),
        (*off, "--api=off"),
    )
    for node, known, why in cases:
        asked = Asked()
        result = asked.read(node, known)
        assert isinstance(result, NotRequested)
        assert result.why.endswith(why)
        assert asked.questions == []


def test_the_autoscaler_is_queried_only_if_other_nodes_have_a_provider_id() -> None:
    asked = Asked(nodes=listed("kind://a", ""), status=CONFIGMAP)
    result = asked.read().known()
    assert (result.others, result.others_with_id, result.long_unregistered) == (2, 1, 1)
    assert asked.questions == [("/api/v1/nodes", (("limit", "50"),)), (STATUS, ())]
    bare = Asked(nodes=listed("", ""))
    assert bare.read() == Known(Autoscaler(others=2))
    assert bare.paths == ["nodes"]


def test_other_nodes_are_not_listed_if_the_node_is_enough() -> None:
    for node, known in (
        (NO_ID, registration(expected=Expected.REQUIRED)),
        (NO_ID, registration(cloud_provider="external")),
        (Known(worker(Taint(UNINITIALIZED))), registration()),
        (GONE, registration(last_seen())),
    ):
        asked = Asked(status=CONFIGMAP)
        result = asked.read(node, Known(known)).known()
        assert (result.others, result.unregistered) == (0, 2)
        assert asked.paths == ["cluster-autoscaler-status"]


def test_an_answer_is_kept_for_minutes_and_a_failure_for_less() -> None:
    for answer, again in ((listed(""), NODES_AGAIN), (SourceError("timed out"), FAILED_AGAIN)):
        asked = Asked(nodes=answer)
        for asked.now in (0.0, 15.0, again - 1, again, again + 15):
            asked.read()
        assert asked.paths == ["nodes", "nodes"]
    asked = Asked(status=CONFIGMAP)
    for asked.now in (0.0, 15.0, STATUS_AGAIN - 1, STATUS_AGAIN):
        asked.read(GONE, Known(registration(last_seen())))
    assert len(asked.paths) == 2


# Over the wire


FORBIDDEN = http(json.dumps({"message": 'nodes is forbidden: User "us" cannot list'}), "403 Forbidden")
ABSENT = http(json.dumps({"message": 'configmaps "cluster-autoscaler-status" not found'}), "404 Not Found")


Read = Callable[..., Reading[Autoscaler]]


@pytest.fixture
def read_with(tmp_path: Path) -> Read:
    def reading(nodes: bytes, status: bytes = b"") -> Reading[Autoscaler]:
        def answers(request: Request) -> Answer:
            answer = status if request.path == STATUS else nodes
            return [answer] if answer else hang(server)

        server: FakeServer = FakeServer(answers)
        with server:
            api = connect(kubeconfig(tmp_path / "kubeconfig", server.url), 0.3)
            cluster = AutoscalerClient("worker-1", inquirer(api.get), lambda: 0.0)
            return reading_of("autoscaler", lambda: cluster.read(NO_ID, UNKNOWN))

    return reading


def test_an_invalid_node_list_is_never_treated_as_bare_metal(read_with: Read) -> None:
    for nodes, why in (
        (http(HTML, kind="text/html"), "expected a response in JSON, got text/html"),
        (http('{"metadata": {"resourceVersion": "9"}, "items": {"a": 1}}'), "malformed object"),
        (http('{"metadata": {"resourceVersion": "9"}, "items": [{"metadata": 1}]}'), "malformed object"),
        (http("{}", "500 Internal Server Error"), "500"),
        (b"", "timed out"),
    ):
        result = read_with(nodes)
        assert isinstance(result, Unavailable)
        assert why in result.why
    refused = read_with(FORBIDDEN)
    assert isinstance(refused, NotRequested)
    why = "no permission to list nodes, to read their provider IDs (API server: 403 nodes is forbidden"
    assert refused.why.startswith(why)


def test_without_the_status_the_rest_is_read_with_the_reason(read_with: Read) -> None:
    for answer, why in (
        (FORBIDDEN, "no permission to get configmap kube-system/cluster-autoscaler-status"),
        (ABSENT, "there is no configmap kube-system/cluster-autoscaler-status"),
        (http('{"data": null}'), "configmap kube-system/cluster-autoscaler-status has no status"),
        (http('{"data": {"status": 7}}'), "configmap kube-system/cluster-autoscaler-status has no status"),
        (http("[" * 100), "configmap kube-system/cluster-autoscaler-status has no status"),
        (http(HTML, kind="text/html"), "expected a response in JSON, got text/html"),
        (http("{}", "500 Internal Server Error"), "configmap kube-system/cluster-autoscaler-status: API server: 500"),
        (b"", "timed out"),
    ):
        result = read_with(http(json.dumps(listed("kind://a"))), answer).known()
        assert (result.others, result.others_with_id) == (1, 1)
        assert (result.unregistered, result.long_unregistered) == (None, None)
        assert why in result.why
