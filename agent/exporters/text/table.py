"""Lines and columns of text for a terminal."""

from collections.abc import Iterable, Iterator, Sequence

from agent.model.text import escape


def lines_as_text(lines: Iterable[str]) -> str:
    return "".join(f"{escape(line)}\n" for line in lines)


def explain(words: Iterable[str]) -> str:
    """Write the commands that explain words, each once."""
    return ", ".join(f"`nodeleak explain {word}`" for word in dict.fromkeys(words))


def grid(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Align columns; the last one has no width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
