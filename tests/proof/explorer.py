"""Explores every order of moves, breadth first: the first counterexample is a shortest one."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from tests.proof.actors import ALL_ACTORS, Actor, moving
from tests.proof.laws import LAWS, Law, clean, whole
from tests.proof.operations import FAILURE, Question, perform
from tests.proof.process import Assembly, Setup, Tree, unchanged
from tests.proof.world import World, spent

Label = str | tuple[str, Question]  # What happened; for an operation of a cleaner, who did what


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A small node, its actors, and how often rare events may happen."""

    name: str
    start: World
    setup: Setup = field(default_factory=Setup)
    actors: tuple[Actor, ...] = ALL_ACTORS
    cleaners: int = 1
    restores: str = ""  # The journal entry that the last of the cleaners restores instead; empty: all are cleaners
    begun: int = 0  # How many operations the first cleaner has done before anything else happens
    laws: tuple[Law, ...] = LAWS
    check_recovery: bool = (
        True  # Whether to check the result of one cleaner that runs alone, from every state
    )
    releases: bool = (
        True  # Whether anything is released in some order. If not, the scenario proves only that.
    )


class Counterexample(Exception):
    """What went wrong, and the steps that lead to it."""

    def __init__(self, wrong: str, steps: list[str]) -> None:
        numbered = "\n".join(f"  {number:2}. {step}" for number, step in enumerate(steps, 1))
        super().__init__(f"{wrong}, after\n{numbered}")
        self.wrong, self.steps = wrong, steps


@dataclass(frozen=True)
class Explored:
    """How much was explored."""

    states: int
    moves: int
    positions: int  # Distinct positions of a cleaner: what it can have read
    removals: int  # Moves in which a cleaner removed a file. A model in which nothing is released proves nothing.
    recoveries: int  # States from which a cleaner was run to its end, alone
    halted: bool  # Whether cleanup halted in some state


@dataclass(eq=False, slots=True)
class Node:
    """A world, and what does not depend on the cleaners. Each world has one node, so nodes are compared by identity."""

    world: World
    wrong: str  # What the laws say of it
    moves: "list[tuple[Label, Node]] | None" = None  # What the actors can do; None: not asked yet


State = tuple[Node, tuple[int, ...]]
"""A node, and the position of each cleaner in the tree of what a cleaner can have read."""


class Explorer:
    def __init__(self, scenario: Scenario, assemble: Assembly = unchanged) -> None:
        self._scenario = scenario
        self._actors = moving(scenario.actors, scenario.start)
        self._tree = Tree(scenario.setup, assemble)
        self._trees = [self._tree] * scenario.cleaners
        if scenario.restores:
            self._trees[-1] = Tree(replace(scenario.setup, restores=scenario.restores), assemble)
        # A single cleaner that is never killed is alone with its journal: the order of those operations is fixed.
        alone = scenario.cleaners == 1 and not (
            scenario.start.may("the cleaner is killed") or scenario.start.may(FAILURE)
        )
        own = {"journal", "exclusive", "leave", "begin", "update"} if alone else set()
        self._invisible = {"number", *own}
        self._recovered: dict[World, str] = {}
        self._removals = 0
        self._nodes: dict[World, Node] = {}
        self._operated: dict[tuple[Node, int, int], list[tuple[Label, Node, int]]] = {}

    @property
    def reached(self) -> Collection[World]:
        return self._nodes.keys()

    def explore(self) -> Explored:
        """Visit every state. Raises Counterexample."""
        node, positions = self._node(self._scenario.start), (0,) * self._scenario.cleaners
        for _ in range(self._scenario.begun):
            ((_, node, position),) = self._operations(node, 0, positions[0])
            positions = _placed(positions, 0, position)
        start = node, positions
        reached_from: dict[State, tuple[State | None, Label]] = {start: (None, "")}
        frontier, moves = [start], 0
        while frontier:
            following: list[State] = []
            for state in frontier:
                if wrong := self._check_recovery(state):
                    raise Counterexample(wrong, _steps(reached_from, state))
                for label, after in self.moves(state):
                    moves += 1
                    if after in reached_from:
                        continue
                    reached_from[after] = (state, label)
                    if wrong := after[0].wrong:
                        raise Counterexample(wrong, _steps(reached_from, after))
                    following.append(after)
            frontier = following
        read, recoveries = sum(map(len, {*self._trees})), len(self._recovered)
        return Explored(
            len(reached_from), moves, read, self._removals, recoveries, self._tree.halted
        )

    def moves(self, state: State) -> Iterator[tuple[Label, State]]:
        node, positions = state
        if node.moves is None:
            node.moves = [
                (label, self._node(after))
                for actor in self._actors
                for label, after in actor(node.world)
            ]
        for label, moved in node.moves:
            yield label, (moved, positions)
        for index, position in enumerate(positions):
            for label, moved, after in self._operations(node, index, position):
                self._removals += label[1][0] == "remove"
                yield label, (moved, _placed(positions, index, after))
            if position > 0 and node.world.may("the cleaner is killed"):
                # The kernel releases its locks, and the next cleaner starts from the beginning.
                who = _who(index)
                held: dict[str, Any] = {
                    name: "" for name in ("lock", "exclusive") if getattr(node.world, name) == who
                }
                killed = self._node(spent(node.world, "the cleaner is killed")._replace(**held))
                yield f"{who} is killed", (killed, _placed(positions, index, 0))

    def _node(self, world: World) -> Node:
        if world not in self._nodes:
            self._nodes[world] = Node(world, self._wrong(world))
        return self._nodes[world]

    def _operations(self, node: Node, index: int, position: int) -> list[tuple[Label, Node, int]]:
        """Return what a cleaner can do. Where the other cleaner is makes no difference."""
        key = (node, index, position)
        if key not in self._operated:
            self._operated[key] = list(self._operate(node.world, index, position))
        return self._operated[key]

    def _operate(
        self, world: World, index: int, position: int
    ) -> Iterator[tuple[Label, Node, int]]:
        tree, who = self._trees[index], _who(index)
        question = tree.question(position)
        if question is None:
            return
        for answer, changed in perform(question, world, who):
            moved, after = self._through_invisible(changed, index, tree.after(position, answer))
            yield (who, question), self._node(moved), after

    def _through_invisible(self, world: World, index: int, position: int) -> tuple[World, int]:
        tree = self._trees[index]
        while (question := tree.question(position)) and question[0] in self._invisible:
            ((answer, world),) = perform(question, world, _who(index))
            position = tree.after(position, answer)
        return world, position

    def _wrong(self, world: World) -> str:
        return next(filter(None, (law(world) for law in self._scenario.laws)), "")

    def _check_recovery(self, state: State) -> str:
        """Stop everything else, run one cleaner to its end, and check the result."""
        node, positions = state
        busy = (
            node.world.lock or node.world.exclusive or any(position > 0 for position in positions)
        )
        if busy or not self._scenario.check_recovery:
            return ""
        before = node.world._replace(left=())
        if before not in self._recovered:
            after, position = before, 0
            while (question := self._tree.question(position)) is not None:
                answer, after = next(perform(question, after, _who(0)))
                position = self._tree.after(position, answer)
            self._recovered[before] = whole(after) or clean(before, after) or self._wrong(after)
        return self._recovered[before]


def _who(index: int) -> str:
    return f"cleaner {index + 1}"


def _placed(positions: tuple[int, ...], index: int, position: int) -> tuple[int, ...]:
    return (*positions[:index], position, *positions[index + 1 :])


def _describe(label: Label) -> str:
    if isinstance(label, str):
        return label
    who, (name, *of) = label
    return " ".join(
        (f"{who}: {name}", *(str(getattr(argument, "name", argument))[:24] for argument in of))
    )


def _steps(reached_from: dict[State, tuple[State | None, Label]], state: State) -> list[str]:
    steps: list[str] = []
    at: State | None = state
    while at is not None:
        at, label = reached_from[at]
        steps.append(_describe(label))
    return [step for step in reversed(steps) if step]
