"""Names of pods that only the daemon remembers: commands take them from it, and nothing else."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cli.commands import CONTAINER, DONE, LEAKED, SmallNode, docker, engine, nodeleak, running
from tests.cli.test_clean import simulated
from tests.wire import ID, FakeServer, http, until

CART = {
    **CONTAINER,
    "Id": LEAKED,
    "Labels": {**CONTAINER["Labels"], "io.kubernetes.pod.name": "cart-0"},  # type: ignore[dict-item]
}


@contextmanager
def remembering(node: SmallNode) -> Iterator[str]:
    """Run a daemon that saw the pod before its address leaked; yield where it listens."""
    node.docker.answers = docker([CONTAINER, CART])
    with running("--api=off", "--listen=127.0.0.1:0", "--interval=100ms", *node.options) as agent:
        listen = f"127.0.0.1:{agent.log_event('agent.started')['port']}"
        until(lambda: "Node " in nodeleak("status", "--listen", listen).said, "the first sync")
        node.docker.answers = engine
        until(
            lambda: " leaked pod address" in nodeleak("status", "--listen", listen).said,
            "the leak is served",
        )
        yield listen
        agent.end()


def document(node: SmallNode, listen: str, *command: str) -> Any:
    done = nodeleak(*command, "-o", "json", "--api=off", *node.options, NODELEAK_LISTEN=listen)
    assert (done.code, done.err) == (DONE, ""), done
    return json.loads(done.out)


def scan(node: SmallNode, listen: str) -> Any:
    return document(node, listen, "scan")


def owners(tree: Any) -> dict[str, str | None]:
    return {one["ip"]: one["pod"] for one in tree["reservations"]}


def test_the_pod_of_a_leak_is_known_while_the_daemon_runs(node: SmallNode) -> None:
    with remembering(node) as listen:
        named, cleaned = (
            scan(node, listen),
            document(node, listen, "clean", "--cleanup-network=auto"),
        )
    unnamed = scan(node, listen)
    assert owners(named) == {"10.244.1.2": "shop/web-0", "10.244.1.9": "shop/cart-0"}
    assert owners(unnamed) == {"10.244.1.2": "shop/web-0", "10.244.1.9": None}
    assert [one["pod"] for one in cleaned["addresses"]] == ["shop/cart-0"]
    assert [one["state"] for one in named["reservations"]] == [
        one["state"] for one in unnamed["reservations"]
    ]
    assert "of pod shop/cart-0" in named["findings"][0]["message"]


# Any process can hold the port of the daemon.


@contextmanager
def lying(*reservations: Any, **more: Any) -> Iterator[str]:
    document = {"schema": "nodeleak.scan/v1", "reservations": reservations, **more}
    with FakeServer(lambda _: [http(json.dumps(document))]) as server:
        yield server.url.removeprefix("http://")


def test_an_answer_changes_no_state_and_nobody_is_asked_about_a_healthy_node(
    node: SmallNode,
) -> None:
    claims = [
        {"container_id": LEAKED, "pod": "kube-system/etcd", "state": "in_use", "ip": "10.244.1.9"},
        {"container_id": ID, "pod": "kube-system/etcd", "state": "leaked", "ip": "10.244.1.2"},
    ]
    node.docker.answers = docker([CONTAINER, CART])
    with FakeServer(lambda _: [http("{}")]) as server:
        healthy = owners(scan(node, server.url.removeprefix("http://")))
    assert (healthy, server.requests) == (
        {"10.244.1.2": "shop/web-0", "10.244.1.9": "shop/cart-0"},
        [],
    )
    node.docker.answers = engine
    with lying(*claims, unavailable=[{"source": "containers", "why": "no"}]) as listen:
        tree = scan(node, listen)
    assert [(one["ip"], one["state"], one["pod"]) for one in tree["reservations"]] == [
        ("10.244.1.2", "in_use", "shop/web-0"), ("10.244.1.9", "leaked", "kube-system/etcd")
    ]  # fmt: skip
    assert tree["unavailable"] == []


def test_an_answer_without_names_does_not_matter(node: SmallNode) -> None:
    names = (None, "\x1b[2J/x", "a/b\n", "a", f"a/{'b' * 300}")
    entries: list[Any] = [None, 7, "x", [], {}, {"container_id": [LEAKED], "pod": "a/b"}]
    entries += ({"container_id": LEAKED, "pod": name} for name in names)
    nameless = http(json.dumps({"reservations": entries}))
    no_list = http('{"reservations": {}}')
    for answer in (
        b"",
        b"\x00" * 99,
        http("[]"),
        http("<html>"),
        http("{}", "503 no"),
        nameless,
        no_list,
    ):
        with FakeServer(lambda _: [answer]) as server:  # noqa: B023 (called at once)
            assert owners(scan(node, server.url.removeprefix("http://")))["10.244.1.9"] is None
        assert len(server.requested("/api/v1/report")) == 1


def test_a_release_is_the_same_whatever_is_answered(tmp_path: Path) -> None:
    with simulated(tmp_path) as incident:
        claims = [
            {"container_id": one.id, "pod": "kube-system/etcd", "state": "in_use"}
            for one in incident.node.leaked
        ]
        for one in incident.node.leaked:  # nothing names their pods, as with kubenet
            for result in incident.host.cache.glob(f"*{one.id}*"):
                result.unlink()
        with lying(*claims) as listen:
            tree = incident.document("--apply", NODELEAK_LISTEN=listen)
    assert {one["ip"]: one["verdict"] for one in tree["addresses"]} == dict.fromkeys(
        incident.leaks, "released"
    )
    assert {one["pod"] for one in tree["addresses"]} == {"kube-system/etcd"}, (
        "the output names them"
    )
    assert {one["pod"] for one in incident.entries()} == {None}, (
        "the journal has only what the node itself knows"
    )
