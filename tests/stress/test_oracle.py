"""The oracle reports what the agent took from a live process, and not what a runtime ends by itself."""

from pathlib import Path
from typing import Final

import pytest

from tests.stress.checker import Action, ViolationKind
from tests.stress.kernel import Namespace
from tests.stress.ledger import Ledger, Store
from tests.stress.oracle import Oracle

IP: Final = "10.254.9.10"
FIRST, SECOND, POD = "a" * 64, "b" * 64, "pod"


class Node:
    """A node as the oracle sees it, with one running pod."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / IP
        self.namespaces = [Namespace("net:[1]", frozenset({IP}), FIRST, POD)]
        self.released: set[str] = set()
        self.ending: set[str] = set()
        self.ledger = Ledger()
        store = Store(directory, [IP], self.ledger)
        self.oracle = Oracle(
            lambda: self.namespaces, store, self.ledger, lambda: self.released, self.ending, persists=0.0
        )
        self.reserve(FIRST)
        self.look()

    def reserve(self, sandbox: str) -> None:
        self.file.write_text(f"{sandbox}\r\neth0")

    def look(self) -> list[ViolationKind]:
        """Look twice: what is seen for the first time may be about to end."""
        for _ in range(2):
            self.oracle.look()
        return [violation.kind for violation in self.ledger.violations()]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_pod_that_ends_with_its_reservation_is_no_violation(node: Node) -> None:
    node.file.unlink()
    node.namespaces = []
    assert node.look() == []
    assert node.ledger.counts()["allocations"] == 1


def test_a_reservation_that_a_pod_loses_is_a_violation(node: Node) -> None:
    node.file.unlink()
    assert node.look() == [ViolationKind.TAKEN]


def test_another_sandbox_in_the_reservation_of_a_pod_is_a_violation(node: Node) -> None:
    node.reserve(SECOND)
    assert node.look() == [ViolationKind.TAKEN]


def test_a_pod_whose_end_was_asked_for_loses_its_reservation_first(node: Node) -> None:
    node.ending.add(POD)
    node.file.unlink()
    assert node.look() == []


def test_a_release_of_the_agent_is_a_violation_even_while_the_pod_ends(node: Node) -> None:
    node.ending.add(POD)
    node.released.add(FIRST)
    node.file.unlink()
    assert node.look() == [ViolationKind.TAKEN]


def test_an_address_in_two_namespaces_is_a_violation_even_if_no_process_has_it(node: Node) -> None:
    node.namespaces.append(Namespace("cni-1", frozenset({IP}), "", ""))
    assert ViolationKind.HELD_TWICE in node.look()


def test_a_namespace_without_a_process_holds_nothing_by_itself(node: Node) -> None:
    node.namespaces = [Namespace("cni-1", frozenset({IP}), "", "")]
    node.file.unlink()
    assert node.look() == []


def test_a_sandbox_that_was_called_leaked_must_never_be_alive(node: Node) -> None:
    node.oracle.called_leaked({FIRST, SECOND})
    node.look()
    assert node.oracle.false_findings == {FIRST}


def test_a_planted_leak_is_reclaimed(node: Node) -> None:
    node.namespaces = []
    node.file.unlink()
    node.look()
    node.ledger.action(Action.CREATED, SECOND)
    node.ledger.action(Action.RM_CALLED, SECOND)
    node.reserve(SECOND)
    node.look()
    node.file.unlink()
    assert node.look() == []
    counts = node.ledger.counts()
    assert (counts["leaked"], counts["reclaimed"]) == (1, 1)
