"""What Events say of pods that wait, or that should be gone."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

from agent.model.snapshot import NotRequested, Pod, SandboxFailure
from agent.sources.kube.errors import ApiError
from agent.sources.kube.sandbox_failures import SandboxFailuresSource
from tests.builders import NOW, node, pod, waiting_pod
from tests.sources.kube.connections import inquirer

MINUTE = timedelta(minutes=1)
FULL = (
    'failed to setup network for sandbox "4f": plugin type="bridge" failed (add): failed to '
    "allocate for range 0: no IP addresses available in range set: 10.9.0.1-10.9.0.254"
)
SANDBOX = "FailedCreatePodSandBox"


class Server:
    def __init__(self, answer: bytes | Exception) -> None:
        self.answer, self.asked = answer, list[tuple[str, Any]]()
        self.seconds = 0.0
        self.source = SandboxFailuresSource(inquirer(self.get), lambda: self.seconds)

    def get(self, path: str, query: Any = ()) -> bytes:
        self.asked.append((path, dict(query)["fieldSelector"]))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def event(message: str, ago: timedelta = MINUTE, reason: str = SANDBOX, **more: Any) -> Any:
    return {"reason": reason, "message": message, "eventTime": (NOW - ago).isoformat(), **more}


def failures(*events: Any, of: Pod | None = None) -> tuple[SandboxFailure, ...]:
    """Return what the API server says of a waiting pod."""
    listed = Server(json.dumps({"items": events}).encode()).source.read(
        node(of or waiting_pod("shop/late"))
    )
    assert not isinstance(listed, NotRequested)
    return listed


def test_the_words_of_each_runtime_are_parsed() -> None:
    containerd = (
        f'rpc error: code = Unknown desc = failed to setup network for sandbox "{"4f" * 32}": '
    )
    crio = (
        "failed to create pod network sandbox k8s_a_b_c_0(4f): error adding pod b_a to CNI "
        'network "crio": '
    )
    no_sbr, no_portmap = (
        f'failed to find plugin "{name}" in path [/opt/cni/bin /a]' for name in ("sbr", "portmap")
    )
    multus = (
        'plugin type="multus" name="multus-cni-network" failed (add): [default/s0/919b:storage]: '
        "error adding container to network "
    )
    aws = 'plugin type="aws-cni" name="aws-cni" failed (add): running IPAM plugin failed: '
    for text, expected in (
        (
            f'{containerd}plugin type="portmap" failed (add): no: iptables',
            ("portmap", "", "add", "no: iptables"),
        ),
        (f'{crio}plugin type="x" name="y" failed (add): boom', ("x", "crio", "add", "boom")),
        (f'{crio}plugin type="sbr" failed (add): {no_sbr}', ("sbr", "crio", "add", no_sbr)),
        (
            f'networkPlugin cni failed to set up pod "web_shop" network: {no_portmap}',
            ("portmap", "", "add", no_portmap),
        ),
        (
            f'{multus}"storage": plugin type="sbr" failed (add): {no_sbr}',
            ("sbr", "storage", "add", no_sbr),
        ),
        # An attachment with a single plugin, which libcni does not name.
        (f'{multus}"devnet": boom', ("multus", "devnet", "add", "boom")),
        (
            'plugin type="multus-shim" name="m" failed (add): CmdAdd (shim): timeout',
            ("multus-shim", "", "add", "CmdAdd (shim): timeout"),
        ),
        # `name` is that of the plugin's own block, and no network's.
        (f"{aws}boom", ("aws-cni", "", "add", "boom")),
        ("anything\x1b[31m", ("", "", "", "anything\\x1b[31m")),
        ("<html>\n  <body>", ("", "", "", "<html> <body>")),
        ("x" * 400, ("", "", "", "x" * 297 + "...")),
    ):
        (failure,) = failures(event(text, 0 * MINUTE))
        found = (failure.plugin, failure.network, failure.operation, failure.message)
        assert found == expected, text
        assert (failure.pod, failure.at, failure.reason) == ("shop/late", NOW, SANDBOX)


def test_it_says_which_message_it_is_how_often_it_came_and_since_when() -> None:
    message = FULL.replace(
        "no IP addresses available", "requested IP address 10.9.0.7 is not available"
    )
    times: Any = {"count": 9, "firstTimestamp": (NOW - 30 * MINUTE).isoformat()}
    (failure,) = failures(event(message, **times))
    assert (failure.count, failure.first) == (9, NOW - 30 * MINUTE)
    assert (failure.requested_ip, failure.exhausted) == ("10.9.0.7", "")
    assert failure.entry == "requested_address_taken"
    (full,) = failures(event(FULL, count=True, series={"count": 12}))
    assert (full.entry, full.exhausted, full.count) == ("range_full", "10.9.0.1-10.9.0.254", 12)
    one, other = (failures(event(f'unheard of: sandbox "{digit * 64}"'))[0] for digit in ("a", "b"))
    assert one.kind == other.kind
    assert one.entry == ""


def test_the_last_event_of_each_reason_is_kept_and_what_filled_a_full_range() -> None:
    listed = failures(
        event("ancient", 20 * MINUTE),
        event("no iptables", 10 * MINUTE),
        event("disk-7 is elsewhere", 5 * MINUTE, "FailedAttachVolume"),
        event(FULL, MINUTE),
        event("another matter", MINUTE, "BackOff"),
    )
    assert [failure.message[:19] for failure in listed] == [
        "no iptables", "disk-7 is elsewhere", "failed to allocate "
    ]  # fmt: skip
    (last,) = failures(event("old", 3 * MINUTE), event("new"))
    assert last.message == "new"


def test_events_are_listed_once_a_minute_of_few_pods_of_each_controller_first() -> None:
    server = Server(json.dumps({"items": [event("new")]}).encode())
    pods = [
        replace(waiting_pod(f"shop/web-{n}", uid=f"uid-{n}"), controller="ReplicaSet/web")
        for n in range(9)
    ]
    alone = waiting_pod("other/alone", uid="uid-alone", ago=2 * MINUTE)
    waiting = node(*pods, alone)
    assert len(server.source.read(waiting)) == 4  # type: ignore[arg-type]
    asked = [selector.removeprefix("involvedObject.uid=") for _, selector in server.asked]
    assert asked == ["uid-0", "uid-alone", "uid-1", "uid-2"]
    assert server.asked[0][0] == "/api/v1/namespaces/shop/events"
    server.source.read(node(*pods[3:]))
    assert len(server.asked) == 4
    server.seconds = 61.0
    server.source.read(waiting)
    assert len(server.asked) == 8
    # Without the right, they are not requested.
    refused = Server(ApiError(403, "forbidden")).source
    assert isinstance(refused.read(node(waiting_pod("shop/late"))), NotRequested)


def test_a_pod_that_should_be_gone_is_asked_about_too() -> None:
    gone = replace(pod("shop/gone", deleting=True), deletion=NOW - 2 * MINUTE)
    killed = 'error killing pod: failed to "KillPodSandbox" for "u" with KillPodSandboxError: "x"'
    (failure,) = failures(event(killed, reason="FailedKillPod"), of=gone)
    assert (failure.reason, failure.pod, failure.message) == ("FailedKillPod", "shop/gone", "x")
    source = Server(b"{}").source
    assert source.reason_not_needed(node(gone)) is None
    in_time = replace(gone, deletion=NOW - timedelta(seconds=59))
    assert source.reason_not_needed(node(in_time))
    assert source.reason_not_needed(node())
    # It has its turn, however many pods wait.
    waiting = [waiting_pod(f"shop/web-{n}", uid=f"uid-{n}") for n in range(9)]
    server = Server(b"{}")
    server.source.read(node(*waiting, gone))
    assert [selector for _, selector in server.asked][-1] == f"involvedObject.uid={gone.uid}"
    assert len(server.asked) == 4
