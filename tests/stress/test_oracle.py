"""The oracle reports what the agent took from a live process, and not what a runtime ends by itself."""

from pathlib import Path
from typing import Final

from tests.stress.checker import Action, ViolationKind
from tests.stress.kernel import Namespace
from tests.stress.ledger import Ledger, Store
from tests.stress.oracle import Oracle

IP: Final = "10.254.9.10"
FIRST, SECOND, POD = "a" * 64, "b" * 64, "pod"
ALIVE: Final = Namespace("net:[1]", frozenset({IP}), FIRST, POD)
PINNED: Final = Namespace("cni-1", frozenset({IP}), "", "")  # Without a process


class Node:
    """A node as the oracle sees it, with one running pod."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.file = directory / IP
        self.namespaces = [ALIVE]
        self.released: set[str] = set()
        self.ending: set[str] = set()
        self.ledger = Ledger()
        store = Store(directory, [IP], self.ledger)
        self.oracle = Oracle(
            lambda: self.namespaces,
            store,
            self.ledger,
            lambda: self.released,
            self.ending,
            persists=0.0,
        )
        self.reserve(FIRST)
        self.look()

    def reserve(self, sandbox: str) -> None:
        self.file.write_text(f"{sandbox}\r\neth0")

    def look(self) -> set[ViolationKind]:
        """Look twice: what is seen for the first time may be about to end."""
        for _ in range(2):
            self.oracle.look()
        return {violation.kind for violation in self.ledger.violations()}


def test_what_the_agent_takes_from_a_live_process_is_a_violation(tmp_path: Path) -> None:
    nobody: set[str] = set()
    for what, namespaces, found, ending, released, expected in (
        ("a pod ends with its reservation", [], "", nobody, nobody, None),
        ("a pod loses its reservation", [ALIVE], "", nobody, nobody, ViolationKind.TAKEN),
        ("a pod's reservation is another's", [ALIVE], SECOND, nobody, nobody, ViolationKind.TAKEN),
        ("a pod whose end was asked for loses it first", [ALIVE], "", {POD}, nobody, None),
        (
            "the agent releases it while the pod ends",
            [ALIVE],
            "",
            {POD},
            {FIRST},
            ViolationKind.TAKEN,
        ),
        (
            "two namespaces, one without a process",
            [ALIVE, PINNED],
            FIRST,
            nobody,
            nobody,
            ViolationKind.HELD_TWICE,
        ),
        (
            "a namespace without a process holds nothing by itself",
            [PINNED],
            "",
            nobody,
            nobody,
            None,
        ),
    ):
        node = Node(tmp_path / what)
        node.namespaces = namespaces
        node.ending |= ending
        node.released |= released
        node.file.unlink()
        if found:
            node.reserve(found)
        assert node.look() == ({expected} if expected else set()), what
        assert expected or node.ledger.counts()["allocations"] == 1


def test_a_sandbox_that_was_called_leaked_must_never_be_alive(tmp_path: Path) -> None:
    node = Node(tmp_path / "node")
    node.oracle.called_leaked({FIRST, SECOND})
    node.look()
    assert node.oracle.false_findings == {FIRST}


def test_a_planted_leak_is_reclaimed(tmp_path: Path) -> None:
    node = Node(tmp_path / "node")
    node.namespaces = []
    node.file.unlink()
    node.look()
    node.ledger.action(Action.CREATED, SECOND)
    node.ledger.action(Action.RM_CALLED, SECOND)
    node.reserve(SECOND)
    node.look()
    node.file.unlink()
    assert node.look() == set()
    counts = node.ledger.counts()
    assert (counts["leaked"], counts["reclaimed"]) == (1, 1)
