"""docs/figures.md as text: sections that the bench writes, and a last one that is written by hand."""

import re
from collections.abc import Iterable, Mapping, Sequence

_BY_HAND = "## In a pod\n"
"""From the output of `hack/footprint`."""


def whole(head: str, sections: Iterable[str], page: str) -> str:
    """Return the page with everything measured anew."""
    _, heading, kept = page.partition(_BY_HAND)
    return "\n".join([head, *sections]) + "\n" + heading + kept


def measured_alone(section: str, conditions: str) -> str:
    """Return a section that says when it was measured, if not together with the others."""
    heading, rest = section.split("\n", 1)
    return f"{heading}\n\nMeasured on its own: {conditions}\n{rest}"


def replaced(page: str, sections: Mapping[str, str], order: Sequence[str]) -> str:
    """Return the page with these sections in place of its own. A section that it does not have goes where it belongs.

    `order`: the names of all sections that the bench writes.
    """
    head, *rest = re.split(r"^(?=## )", page, flags=re.MULTILINE)
    found = {_name(section): section for section in rest}
    measured = found | {name: section + "\n" for name, section in sections.items()}
    names = [*(name for name in order if name in measured), *(name for name in found if name not in order)]
    return head + "".join(measured[name] for name in names)


def _name(section: str) -> str:
    return section.partition("\n")[0].removeprefix("## ").lower()
