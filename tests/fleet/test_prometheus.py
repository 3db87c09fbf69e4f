"""`kubectl nodeleak status --prometheus`: a real Prometheus that scrapes made-up agents."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from http.server import HTTPServer
from urllib.parse import SplitResult, unquote_plus

import pytest

from agent.config import UsageError
from agent.fleet.inventory import Target
from agent.fleet.kubectl import KubectlError
from agent.fleet.prometheus import read
from agent.fleet.status import NodeStatus, Rank
from tests.builders import GONE, node, reservation, without
from tests.e2e.prometheus import running_prometheus
from tests.exporters.daemon import Daemon
from tests.fakes.serving import Handler, Threads, serving
from tests.fleet.kubectl import FakeKubectl, finding, status
from tests.wire import FakeServer, hang, http, refusing_port, until

LEAKED = [reservation(f"10.244.1.{n}", f"{n}{GONE[2:]}") for n in range(30, 33)]
PAGES = {
    "healthy": Daemon().syncs(3, node()),
    "leaking": Daemon().syncs(3, node(*LEAKED)),
    "unread": Daemon().syncs(3, without(node(), "containers")),
    "first": Daemon(),
}
SERVED = {f"/{name}": daemon.scrape().encode() for name, daemon in PAGES.items()}
AGENTS = (
    ("healthy", "10.0.0.1:9747", "worker-1"),
    ("leaking", "10.0.0.2:9747", ""),
    ("unread", "worker-3", ""),
    ("first", "10.0.0.4:9747", "worker-4"),
    ("healthy", "10.0.0.5:9747", "worker-5"),
    ("healthy", "10.0.0.55:9747", "worker-5"),
    ("leaking", "10.9.9.9:9747", "worker-of-others"),
)
"""The page, the label `instance` and the label `node` of each target."""


class Pages(Handler):
    def answer(self, url: SplitResult) -> None:
        self.send(SERVED[url.path], "text/plain; version=0.0.4; charset=utf-8")


class PageServer(Threads, HTTPServer): ...


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a Prometheus that has scraped every agent; give its URL."""
    server = PageServer(("127.0.0.1", 0), Pages)
    address = f"127.0.0.1:{server.server_address[1]}"
    labels = [{"__metrics_path__": f"/{page}", "instance": instance, "node": name} for page, instance, name in AGENTS]
    targets = [{"targets": [address], "labels": of_target} for of_target in labels]
    home = tmp_path_factory.mktemp("prometheus") / "home"
    with serving(server), running_prometheus(home, "", "1s", "nodeleak", targets) as running:
        query = "/api/v1/query?query=nodeleak_build_info"
        until(lambda: len(running.get(query)["result"]) == len(AGENTS), "Prometheus has scraped every agent", 60)
        yield running.url


@pytest.fixture
def cluster(kubectl: FakeKubectl) -> FakeKubectl:
    for number in range(1, 7):
        kubectl.node(f"worker-{number}", address=f"10.0.0.{number}")
    return kubectl


def test_a_selector_that_matches_no_node_does_not_mean_all(cluster: FakeKubectl, prometheus: str) -> None:
    done = cluster.run("status", f"--prometheus={prometheus}/", "-l", "pool=nothing")
    assert (done.code, done.out) == (2, "")
    assert "nodeleak: no node matches" in done.err


def test_the_table_is_that_of_the_agents(cluster: FakeKubectl, prometheus: str) -> None:
    done = cluster.run("status", f"--prometheus={prometheus}/")
    why = {
        "worker-4": "no report: the agent has not finished its first sync",
        "worker-5": "Prometheus has several agents of this node: nodeleak 10.0.0.55:9747, nodeleak 10.0.0.5:9747",
        "worker-6": "Prometheus has no metrics of its agent; to ask the agent itself: kubectl nodeleak status worker-6",
    }
    unread = "worker-3 0.1.0 kubenet 251/253 0 AGE incomplete: containers unavailable: kubectl nodeleak scan says why"
    assert [" ".join(re.sub(r" +\d+d ", " AGE ", line).split()) for line in done.out.splitlines()] == [
        *("6 nodes: 4 unknown, 1 warning, 1 ok", "", "NODE AGENT NETWORK FREE LEAKED AGE FINDINGS"),
        unread,
        f"worker-4 no report - - - - {why['worker-4']}",
        f"worker-5 ambiguous - - - - {why['worker-5']}",
        f"worker-6 no metrics - - - - {why['worker-6']}",
        "worker-2 0.1.0 kubenet 248/253 3 AGE warning: 3 leaked_reservation",
        "worker-1 0.1.0 kubenet 251/253 0 AGE none",
    ]
    assert (done.code, done.err) == (3, "")
    assert cluster.calls("exec") == []
    assert [call[1] for call in cluster.calls("get")] == ["nodes"]


def test_as_json_a_node_has_the_document_of_its_agent(cluster: FakeKubectl, prometheus: str) -> None:
    done = cluster.run("status", "worker-2", f"--prometheus={prometheus}", "-o", "json", "--exit-code")
    (node,) = json.loads(done.out)["nodes"]
    assert (done.code, node["node"], node["exit_code"]) == (1, "worker-2", 0)
    assert node["document"].keys() == status().keys()
    assert node["document"]["findings"] == [finding("warning", "leaked_reservation", 3) | {"oldest": None}]
    network = {"name": "kubenet", "usable": 253, "free": 248, "leaked": 3, "unknown": 0}
    assert node["document"]["networks"] == [network]


def test_other_clusters_are_left_out_on_request(cluster: FakeKubectl, prometheus: str) -> None:
    done = cluster.run("status", f"--prometheus={prometheus}", '--prometheus-cluster=a"b')
    assert done.out.splitlines()[0] == "6 nodes: 6 unknown"


def test_what_is_no_prometheus_is_an_error(cluster: FakeKubectl) -> None:
    with FakeServer(lambda _: [http("no such page")]) as server:
        done = cluster.run("status", f"--prometheus={server.url}")
    why = "no answer of Prometheus' HTTP API: is this the address of a Prometheus?"
    assert (done.code, done.out, done.err) == (3, "", f"nodeleak: {server.url}: {why}\n")


HEAD = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\n"
SIZED = HEAD + b"Content-Length: 100\r\n\r\nabc"
IN_CHUNKS = HEAD + b"Transfer-Encoding: chunked\r\n\r\nff\r\nabc"


def test_an_answer_that_does_not_come_whole_is_an_error(cluster: FakeKubectl) -> None:
    answers: tuple[tuple[Callable[[FakeServer], Iterable[bytes]], str], ...] = (
        (hang, "timed out"),
        (lambda _: [IN_CHUNKS % b"200 OK"], "broken"),
        (lambda _: [SIZED % b"200 OK"], "broken"),
        (lambda _: [], "Remote end closed connection without response"),
        (lambda _: [b"SSH-2.0-OpenSSH_9.2\r\n"], "SSH-2.0-OpenSSH_9.2"),
    )
    for sends, why in answers:
        with FakeServer(lambda _: sends(server)) as server:  # noqa: B023 (called at once)
            check_no_answer(cluster, server.url, why)
    with refusing_port() as port:
        check_no_answer(cluster, f"http://127.0.0.1:{port}", "onnection refused")


def check_no_answer(cluster: FakeKubectl, url: str, why: str) -> None:
    done = cluster.run("status", f"--prometheus={url}", "--timeout=1s")
    assert (done.code, done.out, done.err.count("\n")) == (3, "", 1)
    assert done.err.startswith(f"nodeleak: no answer from {url}: ")
    assert why in done.err


def test_the_text_of_an_error_is_read(cluster: FakeKubectl) -> None:
    body = json.dumps({"status": "error", "error": "query timed out"})
    with FakeServer(lambda _: [http(body, "503 Service Unavailable")]) as server:
        done = cluster.run("status", f"--prometheus={server.url}")
    assert (done.code, done.err) == (3, f"nodeleak: {server.url}: the query failed: query timed out\n")


# What no real Prometheus shows within seconds

TARGET = Target("worker-1", "Ready", None)
KNOWN = {"worker-1": "worker-1", "worker-2": "worker-2", "10.0.0.1": "worker-1"}
AGENT = {"job": "nodeleak", "instance": "10.0.0.1:9747"}


def answer(*results: tuple[dict[str, str], float], **more: object) -> str:
    result = [{"metric": labels, "value": [1000.0, str(value)]} for labels, value in results]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}, **more})


def value(metric: str, number: float, **labels: str) -> tuple[dict[str, str], float]:
    return {"__name__": f"nodeleak_{metric}", **AGENT, **labels}, number


HEALTHY = (value("build_info", 1), value("last_sync_timestamp_seconds", 990))


def status_of(query: str = "", labels: dict[str, str] | None = None, *, sources: bool = True) -> NodeStatus:
    """Return the status of a node that is healthy but for one query, which has one result more."""
    answers = {"value": [*HEALTHY], "sources": [(AGENT, 11.0)] if sources else []}
    if query:
        answers.setdefault(query, []).append(({**AGENT, **(labels or {})}, 1.0))
    (found,) = read([TARGET], KNOWN, ((name, answer(*results)) for name, results in answers.items()))
    return found


def test_the_state_of_a_node() -> None:
    cases: list[tuple[str, dict[str, str], str, Rank, str]] = [
        ("", {}, "ok", Rank.OK, ""),
        ("stalled", {}, "stalled", Rank.UNKNOWN, "stalled: the last report is 10s old"),
        ("failed", {"stage": "check"}, "incomplete", Rank.UNKNOWN, "a check unavailable"),
        ("unavailable", {"source": "pods"}, "incomplete", Rank.UNKNOWN, "pods unavailable"),
        ("value", {"__name__": "nodeleak_cleanup_halted"}, "findings", Rank.CRITICAL, "cleanup halted"),
        ("finding", {"severity": "critical", "detector": "shared_ip"}, "findings", Rank.CRITICAL, "shared_ip"),
        ("finding", {"severity": "info", "detector": "exhausted_range"}, "ok", Rank.INFO, "exhausted_range"),
    ]
    for query, labels, state, rank, shown in cases:
        found = status_of(query, labels)
        assert (found.entry["document"]["state"], found.rank, shown in found.text) == (state, rank, True)


def test_an_agent_whose_series_are_not_those_of_this_version_is_not_healthy() -> None:
    without = status_of(sources=False)
    assert (without.rank, "Prometheus stores no nodeleak_source_up" in without.text) == (Rank.UNKNOWN, True)
    severity = status_of("finding", {"severity": "disaster", "detector": "x"})
    assert (severity.rank, severity.agent, "disaster" in severity.text) == (Rank.UNKNOWN, "unreadable", True)


def test_a_label_of_the_target_that_hides_one_of_the_metrics_is_an_error() -> None:
    for name in ("stage", "source", "severity", "network", "version"):
        labels = {**AGENT, "__name__": "nodeleak_build_info", name: "prod", f"exported_{name}": "own"}
        with pytest.raises(ValueError, match=f"gives the agents the label {name}, which hides"):
            read([TARGET], KNOWN, [("value", answer((labels, 1.0)))])


def test_an_answer_with_a_missing_part_is_none() -> None:
    for partial in ({"warnings": ["a store is down"]}, {"isPartial": True}):
        with pytest.raises(ValueError, match=r"the answer is incomplete: .*(a store is down|partial)"):
            read([TARGET], KNOWN, [("finding", answer(**partial))])


def test_an_agent_that_is_gone_has_no_findings() -> None:
    (found,) = read([TARGET], KNOWN, [("finding", answer((AGENT, 1.0)))])
    assert found.agent == "no metrics"


def test_the_cluster_is_chosen_in_every_query(cluster: FakeKubectl) -> None:
    """It is a name, and no pattern."""
    with FakeServer(lambda _: [http(answer())]) as server:
        cluster.run("status", f"--prometheus={server.url}", "--prometheus-cluster=a$b")
    assert len(server.requests) == 6
    assert all(unquote_plus(request.target).count('cluster="a$b"') == 1 for request in server.requests)


def agents(*nodes: str, **labels: str) -> list[tuple[str, str]]:
    return [("value", answer(*(({**AGENT, "__name__": "nodeleak_build_info", "node": n, **labels}, 1) for n in nodes)))]


def test_the_prometheus_of_another_cluster_is_not_believed() -> None:
    own, foreign = ("worker-1", "worker-2", "10.0.0.1"), ("blue-1", "blue-2", "10.9.0.1")
    for ours, others in ((0, 0), (1, 0), (2, 1)):
        assert read([TARGET], KNOWN, agents(*own[:ours], *foreign[:others]))
    for ours, others in ((0, 1), (1, 1), (1, 2), (2, 3)):
        with pytest.raises(KubectlError, match=f"the status is unknown: {others} of {ours + others} agents"):
            read([TARGET], KNOWN, agents(*own[:ours], *foreign[:others]))


def test_with_another_clusters_prometheus_no_table_is_printed(kubectl: FakeKubectl, prometheus: str) -> None:
    """It has a worker-1 too."""
    for name in ("worker-1", "green-2", "green-3"):
        kubectl.node(name)
    for chosen in ((), ("worker-1",), ("-l", "zone=a")):
        done = kubectl.run("status", *chosen, f"--prometheus={prometheus}")
        assert (done.code, done.out) == (3, "")
        assert "nodeleak: the status is unknown: 6 of 7 agents in this Prometheus are on no node" in done.err


def test_agents_of_several_clusters_are_a_mistake() -> None:
    with pytest.raises(UsageError, match="--prometheus-cluster=NAME"):
        read([TARGET], KNOWN, [*agents("worker-1", cluster="a"), *agents("worker-2", cluster="b")])
