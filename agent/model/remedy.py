"""What to do about a problem: a field beside its message, so that nothing searches the words."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Remedy:
    text: str
    """A clause in the imperative, without a final period: `check --cni-cache-dir`."""
    command: str | None = None
    """A shell command to copy; None: the text is all there is."""

    def __str__(self) -> str:
        return self.text
