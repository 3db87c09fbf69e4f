"""What is asked about the autoscaler, when and how often, and what is read from real status texts."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from agent.model.registration import DELETION_CANDIDATE, UNINITIALIZED, Autoscaler, Taint
from agent.model.settings import Expected
from agent.model.snapshot import Node, NotRequested, Unavailable
from tests.builders import INSTANCE, last_seen, node, registration, unavailable, worker
from tests.sources.kube.conftest import Cluster
from tests.sources.kube.old_server import listed
from tests.wire import HTML, http
from tests.wired import sample

# As a cluster-autoscaler before 1.30 wrote it, one since, and in the order of its own tests.
LINES, YAML, TIME_FIRST = (sample("autoscaler-status", number) for number in range(3))
BEFORE_2018 = """\
Cluster-autoscaler status at 2017-08-04 14:43:40.552637077 +0000 UTC:
Cluster-wide:
  Health:      Healthy (ready=10 unready=0 notStarted=0 longNotStarted=0 registered=10)
"""

STATUS = "/api/v1/namespaces/kube-system/configmaps/cluster-autoscaler-status"
CONFIGMAP = "configmap kube-system/cluster-autoscaler-status"
FORBIDDEN = http(
    json.dumps({"message": 'nodes is forbidden: User "us" cannot list'}), "403 Forbidden"
)
ABSENT = http(
    json.dumps({"message": 'configmaps "cluster-autoscaler-status" not found'}), "404 Not Found"
)
ANNOTATION = "cluster-autoscaler.kubernetes.io"
NO_ID, GONE = [worker()], list[Node]()
UNKNOWN, REQUIRED = registration(), registration(expected=Expected.REQUIRED)


def others(*ids: str) -> bytes:
    """List the own Node, and others with these provider IDs."""
    own: dict[str, Any] = {"metadata": {"name": "worker-1"}, "spec": {}}
    items = [
        {"metadata": {"name": f"other-{n}"}, "spec": {"providerID": one}}
        for n, one in enumerate(ids)
    ]
    return http(listed("NodeList", 9, own, *items))


def status(text: object) -> bytes:
    return http(json.dumps({"metadata": {}, "data": {"status": text}}))


class Asked:
    """A cluster with other nodes and the status of an autoscaler, unless it is told otherwise."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.nodes, self.status = others("kind://a", ""), status(YAML)

    def read(self, nodes: Any = NO_ID, known: Any = UNKNOWN) -> Any:
        self.cluster.answers = {"/api/v1/nodes": self.nodes, STATUS: self.status}
        return self.cluster.read("autoscaler", node(node=nodes, registration=known))

    def anew(self, nodes: Any = NO_ID, known: Any = UNKNOWN) -> Any:
        """Read as a command does that has asked nothing yet."""
        self.cluster.forget()
        return self.read(nodes, known)


@pytest.fixture
def asked(cluster: Cluster) -> Asked:
    return Asked(cluster)


def test_the_status_of_every_version_is_read_and_one_without_counts_reported(asked: Asked) -> None:
    counts = "clusterWide:\n  health:\n    nodeCounts:\n      unregistered: {}\n      longUnregistered: 4\n"
    for text, unregistered, long_unregistered, told in (
        (LINES, None, 3, datetime(2023, 11, 29, 13, 34, 29, tzinfo=UTC)),
        (YAML, 2, 1, datetime(2026, 9, 15, 4, 5, 52, tzinfo=UTC)),
        (TIME_FIRST, 0, 0, datetime(2023, 11, 24, 4, 28, 19, tzinfo=UTC)),
        *(
            (counts.format(invalid), None, 4, None)
            for invalid in ("true", "-1", "1.5", "9" * 5000, "null", "[]")
        ),
    ):
        asked.status = status(text)
        expected = Autoscaler(
            unregistered=unregistered,
            long_unregistered=long_unregistered,
            told=told,
            exists=True,
        )
        assert asked.anew(known=REQUIRED).known() == expected
    for text in (
        BEFORE_2018, "", "Cluster-autoscaler status at 2023-99-29 13:34:29.0 +0000 UTC:\nInitializing",
        "autoscalerStatus: Initializing\ntime: 2026-09-15 04:05:52 +0000 UTC\n", "clusterWide: 1", "[" * 500_000,
        "\x00",
    ):  # fmt: skip
        asked.status = status(text)
        found = asked.anew(known=REQUIRED).known()
        assert (found.unregistered, found.long_unregistered) == (None, None)
        assert found.why.startswith(f"{CONFIGMAP} has no counts of nodes")
        assert len(found.why) < 200


def test_the_autoscaler_is_asked_if_other_nodes_have_a_provider_id_or_the_node_is_reason_enough(
    asked: Asked,
) -> None:
    found = asked.anew().known()
    assert (found.others, found.others_with_id, found.long_unregistered) == (2, 1, 1)
    assert asked.cluster.server.requested("") == ["/api/v1/nodes?limit=50", STATUS]
    assert found.schemes == ("kind",)
    asked.nodes = others("", "")
    assert asked.anew().known() == Autoscaler(others=2)
    assert asked.cluster.asked == ["/api/v1/nodes"]
    for nodes, known in (
        (NO_ID, REQUIRED),
        (NO_ID, registration(cloud_provider="external")),
        ([worker(Taint(UNINITIALIZED))], UNKNOWN),
        (GONE, registration(last_seen())),
    ):
        found = asked.anew(nodes, known).known()
        assert (found.others, found.unregistered) == (0, 2)
        assert asked.cluster.asked == [STATUS]
    for listed_node, seen, why in (
        ([worker(provider_id=INSTANCE)], UNKNOWN, "the node is registered"),
        (NO_ID, registration(expected=Expected.IGNORED), "--provider-id=ignored"),
        (GONE, UNKNOWN, "there is no Node named worker-1, and no evidence that there was one"),
        (
            unavailable("node"),
            UNKNOWN,
            "whether the node is registered is not known: it gave no word",
        ),
        (NotRequested("node", "--api=off"), NotRequested("registration", "--api=off"), "--api=off"),
    ):
        found = asked.anew(listed_node, seen)
        assert isinstance(found, NotRequested)
        assert found.why.endswith(why)
        assert asked.cluster.asked == []


def test_a_young_node_with_an_id_is_compared_with_the_others_and_the_status(asked: Asked) -> None:
    minute = timedelta(minutes=1)
    asked.nodes = http(
        listed(
            "NodeList",
            9,
            *(
                {"metadata": {"name": f"other-{n}", **more}, "spec": {"providerID": one, **spec}}
                for n, (one, more, spec) in enumerate(
                    (
                        (
                            "aws:///a/i-1",
                            {"annotations": {f"{ANNOTATION}/scale-down-disabled": "1"}},
                            {},
                        ),
                        ("aws:///a/i-2", {}, {"taints": [{"key": DELETION_CANDIDATE}]}),
                        ("hrobot://3", {"annotations": {"a": "b"}}, {"taints": [{"key": "a"}]}),
                        ("ocid1.instance", {}, {}),
                    )
                )
            ),
        )
    )
    for age, is_asked in ((2, False), (3, True), (59, True), (60, False)):
        young = [worker(age=age * minute, provider_id=INSTANCE)]
        found = asked.anew(young)
        assert isinstance(found, NotRequested) is not is_asked
        assert asked.cluster.asked == (["/api/v1/nodes", STATUS] if is_asked else [])
    young = [worker(age=9 * minute, provider_id=INSTANCE)]
    found = asked.anew(young).known()
    assert (found.others, found.others_with_id, found.marked) == (4, 4, 2)
    assert (found.schemes, found.exists, found.unregistered) == (("aws", "hrobot"), True, 2)
    for asked.status, exists in ((ABSENT, False), (FORBIDDEN, None), (status(7), True)):
        assert asked.anew(young).known().exists is exists
    asked.nodes = others("", "")
    assert asked.anew(young).known().exists is True, "the others alone may lack an ID"
    asked.nodes = FORBIDDEN
    assert isinstance(asked.anew(young), NotRequested)
    known = registration(expected=Expected.IGNORED)
    assert asked.anew(young, known).why == "--provider-id=ignored"
    # The time that the autoscaler is set to decides how long a node is young.
    known = registration(provision_time=5 * minute)
    assert asked.anew([worker(age=minute, provider_id=INSTANCE)], known)
    assert asked.cluster.asked == ["/api/v1/nodes"]


def test_an_answer_is_kept_for_minutes_and_a_failure_for_less(asked: Asked) -> None:
    failure = http("{}", "500 Internal Server Error")
    for nodes, known, again in (
        (others(""), UNKNOWN, 600),
        (failure, UNKNOWN, 120),
        (others(), REQUIRED, 120),  # of the status
    ):
        asked.nodes, start = nodes, asked.cluster.seconds
        asked.cluster.forget()
        for after, requests in ((0, 1), (15, 1), (again - 1, 1), (again, 2), (again + 15, 2)):
            asked.cluster.seconds = start + after
            asked.read(known=known)
            assert len(asked.cluster.asked) == requests


def test_an_invalid_node_list_is_no_bare_metal_and_without_the_status_the_rest_is_read(
    asked: Asked,
) -> None:
    for asked.nodes, why in (
        (http(HTML, kind="text/html"), "expected a response in JSON, got text/html"),
        (http('{"metadata": {"resourceVersion": "9"}, "items": {"a": 1}}'), "malformed object"),
        (
            http('{"metadata": {"resourceVersion": "9"}, "items": [{"metadata": 1}]}'),
            "malformed object",
        ),
        (http("{}", "500 Internal Server Error"), "500"),
        (b"", "timed out"),
    ):
        found = asked.anew()
        assert isinstance(found, Unavailable)
        assert why in found.why
    asked.nodes = FORBIDDEN
    refused = asked.anew()
    assert isinstance(refused, NotRequested)
    why = "no permission to list nodes, to read their provider IDs (API server: 403 nodes is forbidden"
    assert refused.why.startswith(why)
    asked.nodes = others("kind://a", "")
    for asked.status, why in (
        (FORBIDDEN, f"no permission to get {CONFIGMAP}"),
        (ABSENT, f"there is no {CONFIGMAP}"),
        (http('{"data": null}'), f"{CONFIGMAP} has no status"),
        (status(7), f"{CONFIGMAP} has no status"),
        (http("[" * 100), f"{CONFIGMAP} has no status"),
        (http(HTML, kind="text/html"), "expected a response in JSON, got text/html"),
        (http("{}", "500 Internal Server Error"), f"{CONFIGMAP}: API server: 500"),
        (b"", "timed out"),
    ):
        found = asked.anew().known()
        assert (found.others, found.others_with_id) == (2, 1)
        assert (found.unregistered, found.long_unregistered) == (None, None)
        assert why in found.why
