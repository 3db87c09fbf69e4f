"""What a module in the registry has to offer: a detector is a module."""

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple, Protocol

from agent.model.assessment import Assessment
from agent.model.finding import Finding, Severity


class Noun(NamedTuple):
    """What the findings of a detector are called after their number."""

    one: str
    several: str
    headline: str | None = None
    """What the headline of a report says in place of the number and noun."""
    critical_headline: str | None = None
    """The same if the findings are critical."""


class Step(NamedTuple):
    """One thing to do about a finding."""

    text: str
    commands: tuple[str, ...] = ()
    """To copy, each on a line of its own. Names in capitals stand for what the reader knows."""
    only_for: Severity | None = None
    """Said only if there are findings of this severity. None: of any."""
    kind: str | None = None
    """Said only if there are findings of this kind (`Finding.kinds`). None: of any."""

    def applies(self, severities: Collection[Severity], kinds: Collection[str]) -> bool:
        """Return whether it is about findings of these severities and kinds."""
        is_of_severity = self.only_for is None or self.only_for in severities
        return is_of_severity and (self.kind is None or self.kind in kinds)


class Advice(NamedTuple):
    """What to do about the findings of a detector."""

    steps: tuple[Step, ...]
    runbook: str | None = None
    """Page and section below docs/runbooks. None: no alert is about these findings."""
    in_findings: bool = False
    """Whether each finding has all its steps itself: then these are only for `explain`."""


class Detector(Protocol):
    """A module. Its docstring is its `explain` page, with a line `Means:`.

    The metrics have a zero for each of the severities. `find` yields each problem, and raises
    InsufficientData where a source it needs is unavailable.
    """

    @property
    def NAME(self) -> str: ...
    @property
    def SEVERITIES(self) -> tuple[Severity, ...]: ...
    @property
    def NOUN(self) -> Noun: ...
    @property
    def ADVICE(self) -> Advice: ...
    @property
    def __doc__(self) -> str | None: ...  # type: ignore[override]
    def find(self, assessment: Assessment) -> Iterator[Finding]: ...


class Grouping(Detector, Protocol):
    """A detector whose findings with an equal `group` are shown in one line."""

    def describe_group(self, findings: Sequence[Finding], assessment: Assessment, /) -> str: ...
