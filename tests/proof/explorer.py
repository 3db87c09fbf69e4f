"""Explores every order of moves, breadth first: the first counterexample is a shortest one."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from tests.proof.actors import ALL_ACTORS, Actor, moving
from tests.proof.laws import LAWS, Law, clean, whole
from tests.proof.operations import FAILURE, Question, perform
from tests.proof.process import Assembly, Setup, Tree, unchanged
from tests.proof.world import World, spent

Label = str | tuple[str, Question]
"""What happened; for an operation of a cleaner, who did what."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A small node, its actors, and how often rare events may happen."""

    name: str
    start: World
    setup: Setup = field(default_factory=Setup)
    actors: tuple[Actor, ...] = ALL_ACTORS
    begun: int = 0
    """How many operations the first cleaner has done before anything else happens."""
    laws: tuple[Law, ...] = LAWS
    check_recovery: bool = True
    """Whether to check the result of one cleaner that runs alone, from every state."""
    releases: bool = True
    """Whether anything is released in some order. If not, the scenario proves only that."""


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
    positions: int
    """Distinct positions of a cleaner: what it can have read."""
    removals: int
    """Moves in which a cleaner removed a file. A model in which nothing is released proves nothing."""
    recoveries: int
    """States from which a cleaner was run to its end, alone."""
    halted: bool
    """Whether cleanup halted in some state."""


class Explorer:
    def __init__(self, scenario: Scenario, assemble: Assembly = unchanged) -> None:
        self._scenario = scenario
        self._actors = moving(scenario.actors, scenario.start)
        self._tree = Tree(scenario.setup, assemble)
        # A single cleaner that is never killed is alone with its journal: the order of those operations is fixed.
        alone = len(scenario.start.cleaners) == 1 and not (
            scenario.start.may("the cleaner is killed") or scenario.start.may(FAILURE)
        )
        self._invisible = {"journal", "number", "exclusive", "leave", "begin", "end"} if alone else {"number"}
        self._recovered: dict[World, str] = {}
        self._removals = 0
        self.reached: Collection[World] = ()

    def explore(self) -> Explored:
        """Visit every state. Raises Counterexample."""
        start = self._start()
        reached_from: dict[World, tuple[World | None, Label]] = {start: (None, "")}
        frontier, moves = [start], 0
        while frontier:
            following: list[World] = []
            for world in frontier:
                if wrong := self._check_recovery(world):
                    raise Counterexample(wrong, _steps(reached_from, world))
                for label, after in self.moves(world):
                    moves += 1
                    if after in reached_from:
                        continue
                    reached_from[after] = (world, label)
                    if wrong := self._wrong(after):
                        raise Counterexample(wrong, _steps(reached_from, after))
                    following.append(after)
            frontier = following
        self.reached = reached_from.keys()
        return Explored(
            len(reached_from), moves, len(self._tree), self._removals, len(self._recovered), self._tree.halted
        )

    def moves(self, world: World) -> Iterator[tuple[Label, World]]:
        for actor in self._actors:
            yield from actor(world)
        for index, node in enumerate(world.cleaners):
            yield from self._operations(world, index)
            if node > 0 and world.may("the cleaner is killed"):
                yield f"cleaner {index + 1} is killed", _killed(world, index)

    def _operations(self, world: World, index: int) -> Iterator[tuple[Label, World]]:
        node = world.cleaners[index]
        question = self._tree.question(node)
        if question is None:
            return
        who = f"cleaner {index + 1}"
        for answer, changed in perform(question, world, who):
            self._removals += question[0] == "remove"
            after = _placed(changed, index, self._tree.after(node, answer))
            yield (who, question), self._through_invisible(after, index, who)

    def _through_invisible(self, world: World, index: int, who: str) -> World:
        while (question := self._tree.question(world.cleaners[index])) and question[0] in self._invisible:
            ((answer, changed),) = perform(question, world, who)
            world = _placed(changed, index, self._tree.after(world.cleaners[index], answer))
        return world

    def _start(self) -> World:
        world = self._scenario.start
        for _ in range(self._scenario.begun):
            ((_, world),) = self._operations(world, 0)
        return world

    def _wrong(self, world: World) -> str:
        return next(filter(None, (law(world) for law in self._scenario.laws)), "")

    def _check_recovery(self, world: World) -> str:
        """Stop everything else, run one cleaner to its end, and check the result."""
        if (
            not self._scenario.check_recovery
            or world.lock
            or world.exclusive
            or any(node > 0 for node in world.cleaners)
        ):
            return ""
        before = world._replace(cleaners=(0,), left=())
        if before not in self._recovered:
            after = self._run_to_end(before)
            self._recovered[before] = whole(after) or clean(before, after) or self._wrong(after)
        return self._recovered[before]

    def _run_to_end(self, world: World) -> World:
        while (question := self._tree.question(world.cleaners[0])) is not None:
            answer, changed = next(perform(question, world, "cleaner 1"))
            world = _placed(changed, 0, self._tree.after(world.cleaners[0], answer))
        return world


def _placed(world: World, index: int, node: int) -> World:
    cleaners = list(world.cleaners)
    cleaners[index] = node
    return world._replace(cleaners=tuple(cleaners))


def _killed(world: World, index: int) -> World:
    """The kernel releases its locks. The next cleaner starts from the beginning."""
    who = f"cleaner {index + 1}"
    world = world._replace(
        lock="" if world.lock == who else world.lock, exclusive="" if world.exclusive == who else world.exclusive
    )
    return spent(_placed(world, index, 0), "the cleaner is killed")


def _describe(label: Label) -> str:
    if isinstance(label, str):
        return label
    who, (name, *of) = label
    return " ".join((f"{who}: {name}", *(str(getattr(one, "name", one))[:24] for one in of)))


def _steps(reached_from: dict[World, tuple[World | None, Label]], world: World) -> list[str]:
    steps: list[str] = []
    at: World | None = world
    while at is not None:
        at, label = reached_from[at]
        steps.append(_describe(label))
    return [step for step in reversed(steps) if step]
