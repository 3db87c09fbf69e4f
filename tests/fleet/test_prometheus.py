"""`kubectl nodeleak status --prometheus`: a real Prometheus that scrapes made-up agents."""

import json
import re
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import urlopen

import pytest
import yaml  # type: ignore[import-untyped]

from agent.config import UsageError
from agent.fleet import series
from agent.fleet.kubectl import KubectlError
from agent.fleet.prometheus import check_clusters, check_nodes
from agent.fleet.series import AgentSeries, by_agent, document, queries, samples
from tests.builders import GONE, node, reservation, without
from tests.e2e.fleet import program
from tests.exporters.daemon import Daemon
from tests.fleet.kubectl import FakeKubectl, finding, status
from tests.processes import environment, running
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


class _Pages(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        body = SERVED.get(self.path, b"no such page")
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a Prometheus that has scraped every agent; give its URL."""
    home = tmp_path_factory.mktemp("prometheus")
    with ThreadingHTTPServer(("127.0.0.1", 0), _Pages) as server, socket.create_server(("127.0.0.1", 0)) as free:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        targets = [
            {
                "targets": [f"127.0.0.1:{server.server_port}"],
                "labels": {"__metrics_path__": f"/{page}", "instance": instance, "node": name},
            }
            for page, instance, name in AGENTS
        ]
        jobs = [{"job_name": "nodeleak", "static_configs": targets}]
        text = yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": jobs})
        (home / "prometheus.yml").write_text(text)
        port = free.getsockname()[1]
        free.close()
        url = f"http://127.0.0.1:{port}"
        command = (
            *(program("prometheus"), f"--config.file={home}/prometheus.yml", f"--storage.tsdb.path={home}/data"),
            f"--web.listen-address=127.0.0.1:{port}",
        )
        with running(command, home / "log", environment()):
            until(lambda: _agents(url) == len(AGENTS), "Prometheus has scraped every agent", 60)
            yield url
        server.shutdown()


def _agents(url: str) -> int:
    try:
        with urlopen(f"{url}/api/v1/query?query=nodeleak_build_info", timeout=5) as answer:  # noqa: S310 (our own)
            return len(json.load(answer)["data"]["result"])
    except OSError:
        return 0


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
        "worker-3": "incomplete: containers unavailable: kubectl nodeleak scan says why",
        "worker-4": "no report: the agent has not finished its first sync",
        "worker-5": "Prometheus has several agents of this node: nodeleak 10.0.0.55:9747, nodeleak 10.0.0.5:9747",
        "worker-6": "Prometheus has no metrics of its agent; to ask the agent itself: kubectl nodeleak status worker-6",
    }
    assert [re.split(" {2,}", re.sub(r" +\d+d ", "  AGE  ", line)) for line in done.out.splitlines()] == [
        ["6 nodes: 4 unknown, 1 warning, 1 ok"],
        [""],
        ["NODE", "AGENT", "NETWORK", "FREE", "LEAKED", "AGE", "FINDINGS"],
        [
            "worker-3",
            "0.1.0",
            "kubenet",
            "251/253",
            "0",
            "AGE",
            "incomplete: containers unavailable: kubectl nodeleak scan says why",
        ],
        ["worker-4", "no report", "-", "-", "-", "-", why["worker-4"]],
        ["worker-5", "ambiguous", "-", "-", "-", "-", why["worker-5"]],
        ["worker-6", "no metrics", "-", "-", "-", "-", why["worker-6"]],
        ["worker-2", "0.1.0", "kubenet", "248/253", "3", "AGE", "warning: 3 leaked_reservation"],
        ["worker-1", "0.1.0", "kubenet", "251/253", "0", "AGE", "none"],
    ]
    assert (done.code, done.err) == (3, "")
    assert cluster.calls("exec") == []
    assert [call[1] for call in cluster.calls("get")] == ["nodes"]


def test_as_json_a_node_has_the_document_of_its_agent(cluster: FakeKubectl, prometheus: str) -> None:
    done = cluster.run("status", "worker-2", f"--prometheus={prometheus}", "-o", "json", "--exit-code")
    (one,) = json.loads(done.out)["nodes"]
    assert (done.code, one["node"], one["exit_code"]) == (1, "worker-2", 0)
    assert one["document"].keys() == status().keys()
    assert one["document"]["findings"] == [finding("warning", "leaked_reservation", 3) | {"oldest": None}]
    network = {"name": "kubenet", "usable": 253, "free": 248, "leaked": 3, "unknown": 0}
    assert one["document"]["networks"] == [network]


def test_other_clusters_are_left_out_on_request(cluster: FakeKubectl, prometheus: str) -> None:
    done = cluster.run("status", f"--prometheus={prometheus}", '--prometheus-cluster=a"b')
    assert done.out.splitlines()[0] == "6 nodes: 6 unknown"


def test_a_query_that_prometheus_refuses_is_an_error(
    cluster: FakeKubectl, prometheus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(series.QUERIES, "value", "nodeleak_build_info{")
    done = cluster.run("status", f"--prometheus={prometheus}")
    assert (done.code, done.out) == (3, "")
    assert done.err.startswith(f"nodeleak: {prometheus}: the query failed: ")


def test_what_is_no_prometheus_is_an_error(cluster: FakeKubectl) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Pages) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = cluster.run("status", f"--prometheus={url}")
        server.shutdown()
    why = "no answer of Prometheus' HTTP API: is this the address of a Prometheus?"
    assert (done.code, done.out, done.err) == (3, "", f"nodeleak: {url}: {why}\n")


def test_a_prometheus_that_does_not_listen_is_an_error(cluster: FakeKubectl) -> None:
    with refusing_port() as port:
        url = f"http://127.0.0.1:{port}"
        done = cluster.run("status", f"--prometheus={url}")
    assert done.code == 3
    assert done.err.startswith(f"nodeleak: no answer from {url}: ")
    assert "connection refused" in done.err.lower()


HEAD = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\n"
SIZED = HEAD + b"Content-Length: 100\r\n\r\nabc"
IN_CHUNKS = HEAD + b"Transfer-Encoding: chunked\r\n\r\nff\r\nabc"


@pytest.mark.parametrize(
    ("sends", "why"),
    [
        (hang, "timed out"),
        (lambda _: [IN_CHUNKS % b"200 OK"], "broken"),
        (lambda _: [SIZED % b"200 OK"], "broken"),
        (lambda _: [], "Remote end closed connection without response"),
        (lambda _: [b"SSH-2.0-OpenSSH_9.2\r\n"], "SSH-2.0-OpenSSH_9.2"),
    ],
)
def test_an_answer_that_does_not_come_whole_is_an_error(
    sends: Callable[[FakeServer], Iterable[bytes]], why: str, cluster: FakeKubectl
) -> None:
    with FakeServer(lambda _: sends(server)) as server:
        done = cluster.run("status", f"--prometheus={server.url}", "--timeout=1s")
    assert (done.code, done.out, done.err.count("\n")) == (3, "", 1)
    assert done.err.startswith(f"nodeleak: no answer from {server.url}: ")
    assert why in done.err


def test_the_text_of_an_error_is_read(cluster: FakeKubectl) -> None:
    body = json.dumps({"status": "error", "error": "query timed out"})
    with FakeServer(lambda _: [http(body, "503 Service Unavailable")]) as server:
        done = cluster.run("status", f"--prometheus={server.url}")
    assert (done.code, done.err) == (3, f"nodeleak: {server.url}: the query failed: query timed out\n")


@pytest.mark.parametrize(
    ("options", "mistake"),
    [
        (["--prometheus=localhost:9090"], "expected a URL such as http://localhost:9090"),
        (["--prometheus=file:///etc/passwd"], "expected a URL such as"),
        (["--prometheus-service=prometheus:9090"], "expected a service such as monitoring/prometheus:9090"),
        (["--prometheus=http://a", "--prometheus-service=m/p:1"], "cannot be combined"),
        (["--prometheus-cluster=a"], "--prometheus-cluster needs --prometheus or --prometheus-service"),
    ],
)
def test_mistakes_are_explained(options: list[str], mistake: str, kubectl: FakeKubectl) -> None:
    done = kubectl.run("status", *options)
    assert (done.code, mistake in done.err) == (2, True), done.err


# What no real Prometheus shows within seconds


def answer(*results: tuple[dict[str, str], float]) -> str:
    result = [{"metric": labels, "value": [1000.0, str(value)]} for labels, value in results]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}})


def agent(name: str = "", **labels: str) -> AgentSeries:
    """Return an agent that is healthy but for one query, which has one result."""
    target = {"job": "nodeleak", "instance": "10.0.0.1:9747"}
    metrics = {"nodeleak_build_info": 1.0, "nodeleak_last_sync_timestamp_seconds": 990.0}
    found = samples("value", answer(*(({"__name__": key, **target}, value) for key, value in metrics.items())))
    found += samples("sources", answer((target, 11.0)))
    found += samples(name, answer(({**target, **labels}, 1.0))) if name else []
    (one,) = by_agent(found)
    return one


@pytest.mark.parametrize(
    ("query", "labels", "shown"),
    [
        ("", {}, ("ok", "")),
        ("stalled", {}, ("stalled", "")),
        ("failed", {"stage": "check"}, ("incomplete", "")),
        ("unavailable", {"source": "pods"}, ("incomplete", "")),
        ("value", {"__name__": "nodeleak_cleanup_halted"}, ("findings", "Critical: cleanup halted")),
        ("finding", {"severity": "critical", "detector": "shared_ip"}, ("findings", "")),
        ("finding", {"severity": "info", "detector": "exhausted_range"}, ("ok", "")),
    ],
)
def test_the_state_of_a_node(query: str, labels: dict[str, str], shown: tuple[str, str]) -> None:
    found = document(agent(query, **labels), "worker-1")
    assert (found["state"], found["headline"], found["report"]["age_seconds"]) == (*shown, 10.0)


def test_without_the_series_of_its_sources_an_agent_is_not_healthy() -> None:
    one = agent()
    one.samples = [sample for sample in one.samples if sample.query != "sources"]
    with pytest.raises(LookupError, match="Prometheus stores no nodeleak_source_up"):
        document(one, "worker-1")


@pytest.mark.parametrize("name", ["stage", "source", "severity", "network", "version"])
def test_a_label_of_the_target_that_hides_one_of_the_metrics_is_an_error(name: str) -> None:
    labels = {"__name__": "nodeleak_build_info", "instance": "10.0.0.1:9747", name: "prod", f"exported_{name}": "own"}
    with pytest.raises(ValueError, match=f"gives the agents the label {name}, which hides"):
        by_agent(samples("value", answer((labels, 1.0))))


def test_the_name_of_a_cluster_is_no_pattern() -> None:
    assert series.queries("a$b")["unavailable"] == 'nodeleak_source_up{cluster="a$b"} == 0'


def test_a_severity_of_another_version_is_not_read_as_harmless() -> None:
    with pytest.raises(ValueError, match="disaster"):
        document(agent("finding", severity="disaster", detector="x"), "worker-1")


@pytest.mark.parametrize("partial", [{"warnings": ["a store is down"]}, {"isPartial": True}])
def test_an_answer_with_a_missing_part_is_none(partial: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"the answer is incomplete: .*(a store is down|partial)"):
        samples("finding", json.dumps(json.loads(answer()) | partial))


def test_an_agent_that_is_gone_has_no_findings() -> None:
    assert by_agent(samples("finding", answer(({"instance": "10.0.0.1:9747"}, 1.0)))) == []


def test_the_cluster_is_chosen_in_every_query() -> None:
    assert all(query.count('cluster="a"') == 1 for query in queries("a").values())
    assert not any("cluster" in query or "$" in query for query in queries("").values())


KNOWN = ("worker-1", "worker-2", "10.0.0.1")
FOREIGN = ("blue-1", "blue-2", "10.9.0.1", "worker-9")


@pytest.mark.parametrize(("own", "foreign"), [(0, 0), (1, 0), (2, 1)])
def test_some_agents_of_nodes_that_are_gone_are_left_out(own: int, foreign: int) -> None:
    check_nodes([AgentSeries({"node": one}) for one in (*KNOWN[:own], *FOREIGN[:foreign])], KNOWN)


@pytest.mark.parametrize(("own", "foreign"), [(0, 1), (1, 1), (1, 2), (2, 3)])
def test_the_prometheus_of_another_cluster_is_not_believed(own: int, foreign: int) -> None:
    agents = [AgentSeries({"node": one}) for one in (*KNOWN[:own], *FOREIGN[:foreign])]
    with pytest.raises(KubectlError, match=f"the status is unknown: {foreign} of {own + foreign} agents"):
        check_nodes(agents, KNOWN)


def test_with_another_clusters_prometheus_no_table_is_printed(kubectl: FakeKubectl, prometheus: str) -> None:
    """It has a worker-1 too."""
    for name in ("worker-1", "green-2", "green-3"):
        kubectl.node(name)
    for chosen in ((), ("worker-1",), ("-l", "zone=a")):
        done = kubectl.run("status", *chosen, f"--prometheus={prometheus}")
        assert (done.code, done.out) == (3, "")
        assert "nodeleak: the status is unknown: 6 of 7 agents in this Prometheus are on no node" in done.err


def test_agents_of_several_clusters_are_a_mistake() -> None:
    agents = [AgentSeries({"cluster": name}) for name in ("a", "b")]
    with pytest.raises(UsageError, match="--prometheus-cluster=NAME"):
        check_clusters(agents)
