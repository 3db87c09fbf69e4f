"""`kubectl nodeleak status --prometheus`: a real Prometheus that scrapes made-up agents."""

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from http.server import HTTPServer
from urllib.parse import SplitResult, unquote_plus

import pytest

from tests.builders import GONE, node, reservation, without
from tests.cli.commands import Done
from tests.e2e.prometheus import running_prometheus
from tests.exporters.daemon import Daemon
from tests.fakes.serving import Handler, Threads, serving
from tests.fleet.kubectl import FakeKubectl, finding, query_of, status
from tests.wire import FakeServer, Request, hang, http, refusing_port, until

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
    ("healthy", "10.0.0.7:9747", ""),
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
    labels = [
        {"__metrics_path__": f"/{page}", "instance": instance, "node": name}
        for page, instance, name in AGENTS
    ]
    targets = [{"targets": [address], "labels": of_target} for of_target in labels]
    home = tmp_path_factory.mktemp("prometheus") / "home"
    with serving(server), running_prometheus(home, "", "1s", "nodeleak", targets) as running:
        query = "/api/v1/query?query=nodeleak_build_info"
        until(
            lambda: len(running.get(query)["result"]) == len(AGENTS),
            "Prometheus has scraped every agent",
            60,
        )
        yield running.url


@pytest.fixture
def cluster(kubectl: FakeKubectl) -> FakeKubectl:
    for number in range(1, 7):
        kubectl.node(f"worker-{number}", address=f"10.0.0.{number}")
    # A node that was replaced may still have its object: an address of two nodes is of neither.
    kubectl.node("worker-7", address="10.0.0.7")
    kubectl.node("worker-8", address="10.0.0.7")
    return kubectl


def test_the_table_is_that_of_the_agents(cluster: FakeKubectl, prometheus: str) -> None:
    done = cluster.run("status", f"--prometheus={prometheus}/")
    no_metrics = (
        "Prometheus has no metrics of its agent; to ask the agent itself: kubectl nodeleak status"
    )
    why = {
        "worker-4": "no report: the agent has not finished its first sync",
        "worker-5": "Prometheus has several agents of this node: nodeleak 10.0.0.55:9747, nodeleak 10.0.0.5:9747",
    }
    unread = "worker-3 0.1.0 kubenet 251/253 0 - AGE incomplete: containers unavailable: kubectl nodeleak scan says why"
    assert [
        " ".join(re.sub(r" +\d+d ", " AGE ", line).split()) for line in done.out.splitlines()
    ] == [
        *(
            "8 nodes: 6 unknown, 1 warning, 1 ok",
            "",
            "NODE AGENT NETWORK FREE LEAKED RELEASABLE AGE FINDINGS",
        ),
        unread,
        f"worker-4 no report - - - - - {why['worker-4']}",
        f"worker-5 ambiguous - - - - - {why['worker-5']}",
        *(
            f"{node} no metrics - - - - - {no_metrics} {node}"
            for node in ("worker-6", "worker-7", "worker-8")
        ),
        "worker-2 0.1.0 kubenet 248/253 3 - AGE warning: 3 leaked_reservation",
        "worker-1 0.1.0 kubenet 251/253 0 - AGE none",
    ]
    assert (done.code, done.err) == (3, "")
    assert cluster.calls("exec") == []
    assert [call[1] for call in cluster.calls("get")] == ["nodes"]


def test_as_json_a_node_has_the_document_of_its_agent(
    cluster: FakeKubectl, prometheus: str
) -> None:
    done = cluster.run(
        "status", "worker-2", f"--prometheus={prometheus}", "-o", "json", "--exit-code"
    )
    (node,) = json.loads(done.out)["nodes"]
    assert (done.code, node["node"], node["exit_code"]) == (1, "worker-2", 0)
    assert node["document"].keys() == status().keys()
    assert node["document"]["findings"] == [
        finding("warning", "leaked_reservation", 3) | {"oldest": None}
    ]
    network = {
        "name": "kubenet",
        "usable": 253,
        "free": 248,
        "leaked": 3,
        "unknown": 0,
        "releasable": None,
    }
    assert node["document"]["networks"] == [network]
    done = cluster.run("status", f"--prometheus={prometheus}", '--prometheus-cluster=a"b')
    assert done.out.splitlines()[0] == "8 nodes: 8 unknown", "other clusters are left out"
    done = cluster.run("status", f"--prometheus={prometheus}/", "-l", "pool=nothing")
    assert (done.code, done.out, "nodeleak: no node matches" in done.err) == (2, "", True), (
        "it does not mean all"
    )


HEAD = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\n"
SIZED = HEAD + b"Content-Length: 100\r\n\r\nabc"
IN_CHUNKS = HEAD + b"Transfer-Encoding: chunked\r\n\r\nff\r\nabc"


def test_an_answer_that_is_none_is_an_error(cluster: FakeKubectl) -> None:
    failed = http(
        json.dumps({"status": "error", "error": "query timed out"}), "503 Service Unavailable"
    )
    none = "no answer from {}: "
    answers: list[tuple[Callable[[FakeServer], Iterable[bytes]], str, str]] = [
        (
            lambda _: [http("no such page")],
            "{}: ",
            "no answer of Prometheus' HTTP API: is this the address of a Prom",
        ),
        (lambda _: [failed], "{}: ", "the query failed: query timed out"),
        (hang, none, "timed out"),
        (lambda _: [IN_CHUNKS % b"200 OK"], none, "broken"),
        (lambda _: [SIZED % b"200 OK"], none, "broken"),
        (lambda _: [], none, "Remote end closed connection without response"),
        (lambda _: [b"SSH-2.0-OpenSSH_9.2\r\n"], none, "SSH-2.0-OpenSSH_9.2"),
    ]

    def check(url: str, start: str, why: str) -> None:
        done = cluster.run("status", f"--prometheus={url}", "--timeout=1s")
        assert (done.code, done.out, done.err.count("\n")) == (3, "", 1)
        assert done.err.startswith(f"nodeleak: {start.format(url)}")
        assert why in done.err

    for sends, start, why in answers:
        with FakeServer(lambda _: sends(server)) as server:  # noqa: B023 (called at once)
            check(server.url, start, why)
    with refusing_port() as port:
        check(f"http://127.0.0.1:{port}", none, "onnection refused")


def test_an_answer_that_never_ends_is_given_up(cluster: FakeKubectl) -> None:
    """Wherever it does, and also after a redirect: each byte is in time, and the whole is not."""
    starts = (
        b"HTTP/1.1 200 OK\r\nX-Slow: ",
        HEAD % b"200 OK" + b"Content-Length: 999999\r\n\r\n",
        HEAD % b"503 no" + b"Content-Length: 999999\r\n\r\n",
        HEAD % b"200 OK" + b"Transfer-Encoding: chunked\r\n\r\n1",
        HEAD % b"200 OK" + b"\r\n",
    )
    for start in starts:
        over = threading.Event()
        done: list[Done] = []
        with FakeServer(partial(dripping, over, start)) as server:
            threading.Thread(target=ask, args=(cluster, server.url, done), daemon=True).start()
            until(partial(len, done), "it is given up")
            over.set()
        assert (done[0].code, done[0].out, done[0].err.count("\n")) == (3, "", 1)
        assert f"no answer from {server.url}: no complete response within 2 s" in done[0].err


def dripping(over: threading.Event, start: bytes, _: Request) -> Iterator[bytes]:
    """Begin an answer, and send a byte now and then until it is over."""
    yield start
    while not over.wait(0.05):
        yield b"1"


def ask(cluster: FakeKubectl, url: str, done: list[Done]) -> None:
    done.append(cluster.run("status", f"--prometheus={url}", "--timeout=1s"))


def test_an_answer_without_end_is_not_kept(cluster: FakeKubectl) -> None:
    def flood(_: Request) -> Iterator[bytes]:
        yield HEAD % b"200 OK" + b"\r\n"
        while not server.closing.is_set():
            yield b"1" * 65536

    server = FakeServer(flood)
    with server:
        done = cluster.run("status", f"--prometheus={server.url}")
    assert (done.code, done.out) == (3, "")
    assert "larger than" in done.err


# What no real Prometheus shows within seconds

Sample = tuple[dict[str, str], float]


def answer(*samples: Sample, **more: object) -> str:
    result = [{"metric": labels, "value": [1000.0, str(value)]} for labels, value in samples]
    return json.dumps(
        {"status": "success", "data": {"resultType": "vector", "result": result}, **more}
    )


def agent(name: str = "worker-1", **labels: str) -> dict[str, str]:
    """Return the labels of an agent's series."""
    return {"job": "nodeleak", "instance": f"{name}:9747", **labels}


def of_agents(*agents: dict[str, str]) -> dict[str, list[Sample]]:
    """Return the samples of agents without findings, by query."""
    values = {"nodeleak_build_info": 1.0, "nodeleak_last_sync_timestamp_seconds": 990.0}
    samples = [
        ({**labels, "__name__": name}, value) for labels in agents for name, value in values.items()
    ]
    return {"value": samples, "sources": [(labels, 11.0) for labels in agents]}


def asked(
    kubectl: FakeKubectl, samples: dict[str, list[Sample]], *options: str, **more: object
) -> Done:
    """Ask a Prometheus that has these samples for each query. `more`: in every answer."""

    def answers(request: Request) -> Iterable[bytes]:
        return [http(answer(*samples.get(query_of(request), ()), **more))]

    with FakeServer(answers) as server:
        return kubectl.run("status", f"--prometheus={server.url}", *options)


def test_the_state_of_a_node(kubectl: FakeKubectl) -> None:
    cases: dict[str, tuple[str, dict[str, str], str, str]] = {
        "cleanup": (
            "value",
            {"__name__": "nodeleak_cleanup_halted"},
            "findings",
            "critical: cleanup halted",
        ),
        "shared": (
            "finding",
            {"severity": "critical", "detector": "shared_ip"},
            "findings",
            "critical: shared_ip",
        ),
        "failed": ("failed", {"stage": "check"}, "incomplete", "incomplete: a check unavailable"),
        "no-pods": (
            "unavailable",
            {"source": "pods"},
            "incomplete",
            "incomplete: pods unavailable",
        ),
        "severity": (
            "finding",
            {"severity": "disaster", "detector": "x"},
            "",
            "cannot read its metrics: ",
        ),
        "stalled": ("stalled", {}, "stalled", "stalled: the last report is 10s old"),
        "version": ("", {}, "", "Prometheus stores no nodeleak_source_up"),
        "note": (
            "finding",
            {"severity": "info", "detector": "exhausted_range"},
            "ok",
            "info: exhausted_range",
        ),
        "waits": (
            "finding",
            {"severity": "info", "detector": "waiting_pods"},
            "waiting",
            "info: waiting_pods",
        ),
        "healthy": ("", {}, "ok", "none"),
    }
    samples = of_agents(*map(agent, cases))
    samples["sources"] = [sample for sample in samples["sources"] if sample[0] != agent("version")]
    for name, (query, labels, _, _) in cases.items():
        kubectl.node(name)
        samples.setdefault(query, []).append((agent(name, **labels), 1.0))
    table = asked(kubectl, samples).out.splitlines()
    assert table[0] == "10 nodes: 2 critical, 5 unknown, 2 info, 1 ok"
    assert [line.split()[0] for line in table[3:]] == list(cases)
    assert [
        text
        for line, (_, _, _, text) in zip(table[3:], cases.values(), strict=True)
        if text not in line
    ] == []
    gone: dict[str, list[Sample]] = {"finding": [(agent("healthy"), 1.0)]}
    assert "healthy  no metrics" in asked(kubectl, gone, "healthy").out, (
        "an agent that is gone has no findings"
    )
    for entry in json.loads(asked(kubectl, samples, "-o", "json").out)["nodes"]:
        assert entry.get("document", {"state": ""})["state"] == cases[entry["node"]][2]


def test_an_answer_that_hides_or_lacks_something_is_an_error(kubectl: FakeKubectl) -> None:
    kubectl.node("worker-1")
    for name in ("stage", "source", "severity", "network", "version"):
        asked(kubectl, of_agents(agent(**{name: "prod", f"exported_{name}": "own"}))).fails(
            3, f"gives the agents the label {name}, which hides"
        )
    for incomplete, why in (
        ({"warnings": ["a store is down"]}, "a store is down"),
        ({"isPartial": True}, "partial"),
    ):
        done = asked(kubectl, of_agents(agent()), **incomplete)
        assert (done.code, done.out) == (3, "")
        assert re.search(f"the answer is incomplete: .*{why}", done.err)
    done = asked(kubectl, of_agents(agent(cluster="a"), agent("worker-2", cluster="b")))
    assert (done.code, done.out, "--prometheus-cluster=NAME" in done.err) == (2, "", True), (
        "agents of several clusters"
    )


def test_the_cluster_is_chosen_in_every_query(cluster: FakeKubectl) -> None:
    """It is a name, and no pattern."""
    with FakeServer(lambda _: [http(answer())]) as server:
        cluster.run("status", f"--prometheus={server.url}", "--prometheus-cluster=a$b")
    assert len(server.requests) == 6
    assert all(
        unquote_plus(request.target).count('cluster="a$b"') == 1 for request in server.requests
    )


def test_the_prometheus_of_another_cluster_is_not_believed(kubectl: FakeKubectl) -> None:
    """Also if it has a worker-1 too, whichever nodes are chosen."""
    kubectl.node("worker-1", address="10.0.0.1")
    kubectl.node("worker-2")
    own, foreign = ("worker-1", "worker-2", "10.0.0.1"), ("blue-1", "blue-2", "10.9.0.1")
    for ours, others in ((0, 0), (1, 0), (2, 1), (0, 1), (1, 1), (1, 2), (2, 3)):
        samples = of_agents(*map(agent, (*own[:ours], *foreign[:others])))
        if others < ours or not others:
            assert asked(kubectl, samples).out.startswith("2 nodes: ")
            continue
        for chosen in ((), ("worker-1",), ("-l", "zone=a")) if ours == 2 else ((),):
            asked(kubectl, samples, *chosen).fails(
                3, f"the status is unknown: {others} of {ours + others} agents"
            )
