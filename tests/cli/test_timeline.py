"""timeline on a small node: output and exit code."""

import json
import os
import socket
from datetime import UTC, datetime
from typing import Any

import pytest

from agent.cleanup.journal import RESERVATION, Entry, FileImage
from agent.cleanup.journal_store import JournalStore
from agent.model.release import Verdict
from tests.cli.commands import LEAKED, Done, SmallNode, hanging_api, nodeleak
from tests.wire import FakeServer, http

BOOTED = 1_700_000_000
FILE = FileImage(RESERVATION, "kubenet", "10.244.1.9", b"", 0o644, 0, 0, 7, 0)


@pytest.fixture
def node(node: SmallNode) -> SmallNode:
    """A node that booted at a round time; its kubelet and a plugin of it made their sockets ten seconds apart."""
    plugins = node.home / "device-plugins"
    plugins.mkdir()
    for name, when in (("kubelet.sock", BOOTED + 60), ("kubevirt-kvm.sock", BOOTED + 70)):
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(plugins / name))
        os.utime(plugins / name, (when, when))
    return node


def timeline(node: SmallNode, *arguments: str, api: tuple[str, ...] = ("--api=off",)) -> Done:
    return nodeleak("timeline", *api, *node.options, *arguments)


def document(node: SmallNode, *arguments: str, code: int = 0) -> Any:
    done = timeline(node, "-o", "json", *arguments)
    assert (done.code, done.err) == (code, ""), done
    return json.loads(done.out)


def write_journal(node: SmallNode) -> None:
    journal_store, at = JournalStore(node.home / "state"), datetime.fromtimestamp(BOOTED + 300, UTC)
    entry = Entry("e-1", at, "run", "f" * 64, "shop/cart", (FILE,))
    journal_store.begin(entry, [])
    journal_store.update(entry.ended(Verdict.RELEASED, ""), at)


def test_the_daemon_names_the_pod_of_a_leak(node: SmallNode) -> None:
    reservations = [{"container_id": LEAKED, "pod": "shop/cart-0"}]
    with FakeServer(lambda _: [http(json.dumps({"reservations": reservations}))]) as daemon:
        done = nodeleak(
            "timeline",
            "--api=off",
            *node.options,
            NODELEAK_LISTEN=daemon.url.removeprefix("http://"),
        )
    assert "of pod shop/cart-0" in done.said
    assert "of pod" not in timeline(node).said
    assert not (node.home / "state").exists(), "it writes nothing"


def test_events_are_listed_in_order_and_since_limits_them(node: SmallNode) -> None:
    write_journal(node)
    done, tree = timeline(node), document(node)
    assert (done.code, done.err) == (0, "")
    lines = [line for line in done.out.splitlines() if line[1:].startswith("2023-11-14")]
    texts = (
        "booted",
        "kubelet started",
        "device manager started",
        "kubevirt-kvm.sock appeared",
        "was released",
    )
    places = [place for text in texts for place, line in enumerate(lines) if text in line]
    assert (len(places), places) == (len(texts), sorted(places))
    assert " 2023-11-14 22:14:20.000  the kubelet's device manager started" in done.out
    assert (tree["schema"], tree["unavailable"]) == ("nodeleak.timeline/v1", [])
    found = {one["what"]: one for one in tree["events"]}
    assert (found["socket_appeared"]["at"], found["socket_appeared"]["exact"]) == (
        "2023-11-14T22:14:30.000Z",
        True,
    )
    assert (found["released"]["subject"], found["leaked"]["exact"]) == ("10.244.1.9", False)
    assert document(node, "--since", "1h")["events"] == []
    assert "No events in the last 1h." in timeline(node, "--since", "1h").said
    assert document(node, "--since", "36500d")["events"] == tree["events"]


def test_what_hangs_or_is_unreadable_makes_it_incomplete_and_a_damaged_entry_is_a_warning(
    node: SmallNode,
) -> None:
    write_journal(node)
    (node.home / "state/journal/torn.json").write_text("{torn")
    (warning,) = document(node)["warnings"]
    assert "torn.json: no entry of this version" in warning
    file = node.home / "state/journal/x.json"
    file.mkdir()
    assert document(node, code=3)["unavailable"] == [
        {"source": "journal", "why": f"{file}: not a regular file"}
    ]
    with hanging_api(node.home) as api:
        done = timeline(node, "--api-timeout", "300ms", api=tuple(api))
    assert (done.code, done.err) == (3, "")
    assert "Unavailable (events of these sources are missing above):" in done.said
    assert "  pods: " in done.out
    assert "the node booted" in done.said
