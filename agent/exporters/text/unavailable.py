"""Unavailable sources as text: a reason once, however many sources share it and whatever depends on them."""

from collections.abc import Iterable, Iterator

from agent.model.snapshot import Unavailable


def by_reason(unavailable: Iterable[Unavailable]) -> Iterator[str]:
    """List each reason with its sources: if a server does not answer, all that it would have said is missing."""
    sources: dict[str, list[str]] = {}
    for one in unavailable:
        sources.setdefault(one.why, []).append(one.source)
    return (f"{', '.join(names)}: {why}" for why, names in sources.items())


def refer(text: str, unavailable: Iterable[Unavailable]) -> str:
    """Write only the name of a source where a text repeats why it is unavailable."""
    for one in unavailable:
        text = text.replace(f"{one.source}: {one.why}", f"needs {one.source}")
    return text
