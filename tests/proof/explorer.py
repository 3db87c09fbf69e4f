"""Goes through every order of moves, breadth first: the first counterexample is one of the shortest."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from tests.proof.actors import EVERYBODY, Actor, moving
from tests.proof.laws import LAWS, Law, clean, whole
from tests.proof.process import Assembly, Setup, Tree, as_it_is
from tests.proof.touch import FAILURE, Question, ask
from tests.proof.world import World, spent

Label = str | tuple[str, Question]
"""What happened; of a touch of ours, who asked what."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A small node, who is on it, and how often rare things may happen."""

    name: str
    start: World
    setup: Setup = field(default_factory=Setup)
    actors: tuple[Actor, ...] = EVERYBODY
    begun: int = 0
    """How many touches of the first cleaner lie behind it when everything begins."""
    laws: tuple[Law, ...] = LAWS
    at_rest: bool = True
    """Whether what an only cleaner leaves behind is judged, too."""
    releases: bool = True
    """Whether anything is released: where nothing is, nothing is proved of releasing."""


class Counterexample(Exception):
    """What went wrong, and the steps to it."""

    def __init__(self, wrong: str, steps: list[str]) -> None:
        numbered = "\n".join(f"  {number:2}. {step}" for number, step in enumerate(steps, 1))
        super().__init__(f"{wrong}, after\n{numbered}")
        self.wrong, self.steps = wrong, steps


@dataclass(frozen=True)
class Explored:
    """How much was gone through."""

    states: int
    moves: int
    positions: int
    """Different things that a process of ours can have read."""
    removals: int
    """Moves in which a file was removed by us: a model in which nothing is released proves nothing."""
    rests: int
    """States in which a cleaner was run to its end, alone."""
    stopped: bool
    """Whether cleaning stopped itself anywhere."""


class Explorer:
    def __init__(self, scenario: Scenario, assemble: Assembly = as_it_is) -> None:
        self._scenario = scenario
        self._actors = moving(scenario.actors, scenario.start)
        self._tree = Tree(scenario.setup, assemble)
        # Nobody else touches the journal of an only cleaner that is never killed: its own order is the only one.
        lonely = len(scenario.start.cleaners) == 1 and not (
            scenario.start.may("we are killed") or scenario.start.may(FAILURE)
        )
        self._quiet = {"journal", "number", "exclusive", "leave", "begin", "end"} if lonely else {"number"}
        self._recovered: dict[World, str] = {}
        self._removals = 0
        self.reached: Collection[World] = ()

    def explore(self) -> Explored:
        """Visit every state; raises Counterexample."""
        start = self._begun()
        came: dict[World, tuple[World | None, Label]] = {start: (None, "")}
        front, moves = [start], 0
        while front:
            following: list[World] = []
            for world in front:
                if wrong := self._at_rest(world):
                    raise Counterexample(wrong, _steps(came, world))
                for label, after in self.moves(world):
                    moves += 1
                    if after in came:
                        continue
                    came[after] = (world, label)
                    if wrong := self._wrong(after):
                        raise Counterexample(wrong, _steps(came, after))
                    following.append(after)
            front = following
        self.reached = came.keys()
        return Explored(len(came), moves, len(self._tree), self._removals, len(self._recovered), self._tree.stopped)

    def moves(self, world: World) -> Iterator[tuple[Label, World]]:
        for actor in self._actors:
            yield from actor(world)
        for index, node in enumerate(world.cleaners):
            yield from self._touches(world, index)
            if node > 0 and world.may("we are killed"):
                yield f"cleaner {index + 1} is killed", _killed(world, index)

    def _touches(self, world: World, index: int) -> Iterator[tuple[Label, World]]:
        node = world.cleaners[index]
        question = self._tree.question(node)
        if question is None:
            return
        who = f"cleaner {index + 1}"
        for answer, touched in ask(question, world, who):
            self._removals += question[0] == "remove"
            after = _placed(touched, index, self._tree.after(node, answer))
            yield (who, question), self._through_quiet(after, index, who)

    def _through_quiet(self, world: World, index: int, who: str) -> World:
        while (question := self._tree.question(world.cleaners[index])) and question[0] in self._quiet:
            ((answer, touched),) = ask(question, world, who)
            world = _placed(touched, index, self._tree.after(world.cleaners[index], answer))
        return world

    def _begun(self) -> World:
        world = self._scenario.start
        for _ in range(self._scenario.begun):
            ((_, world),) = self._touches(world, 0)
        return world

    def _wrong(self, world: World) -> str:
        return next(filter(None, (law(world) for law in self._scenario.laws)), "")

    def _at_rest(self, world: World) -> str:
        """Stop the world, start one cleaner, let it run to its end, and judge what it leaves."""
        if not self._scenario.at_rest or world.lock or world.exclusive or any(node > 0 for node in world.cleaners):
            return ""
        before = world._replace(cleaners=(0,), left=())
        if before not in self._recovered:
            after = self._to_its_end(before)
            self._recovered[before] = whole(after) or clean(before, after) or self._wrong(after)
        return self._recovered[before]

    def _to_its_end(self, world: World) -> World:
        while (question := self._tree.question(world.cleaners[0])) is not None:
            answer, touched = next(ask(question, world, "cleaner 1"))
            world = _placed(touched, 0, self._tree.after(world.cleaners[0], answer))
        return world


def _placed(world: World, index: int, node: int) -> World:
    cleaners = list(world.cleaners)
    cleaners[index] = node
    return world._replace(cleaners=tuple(cleaners))


def _killed(world: World, index: int) -> World:
    """The kernel takes our locks back, and nothing else of us runs; the next cleaner begins anew."""
    who = f"cleaner {index + 1}"
    world = world._replace(
        lock="" if world.lock == who else world.lock, exclusive="" if world.exclusive == who else world.exclusive
    )
    return spent(_placed(world, index, 0), "we are killed")


def _said(label: Label) -> str:
    if isinstance(label, str):
        return label
    who, (name, *of) = label
    return " ".join((f"{who}: {name}", *(str(getattr(one, "name", one))[:24] for one in of)))


def _steps(came: dict[World, tuple[World | None, Label]], world: World) -> list[str]:
    steps: list[str] = []
    at: World | None = world
    while at is not None:
        at, label = came[at]
        steps.append(_said(label))
    return [step for step in reversed(steps) if step]
