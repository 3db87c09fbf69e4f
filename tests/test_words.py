"""User-facing text is plain English: the private words of earlier versions do not come back."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = {".json", ".md", ".yaml"}
WITH_THE_OLD_WORDS = {"CHANGELOG.md"}
"""The changelog lists what was renamed."""

PAGES = [
    page
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*"), *(ROOT / "deploy").rglob("*"))
    if page.suffix in TEXT and str(page.relative_to(ROOT)) not in WITH_THE_OLD_WORDS
]
EACH = [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES]

BANNED = re.compile(
    r"""(?x) \b(
    actuator | blind\b(?!\.png) | chronicle | courier | doubted | for\ ever | innocents? | judged | our\ own\ eyes
    | portraits? | rounds? | stranded | to\ be\ had | torment | torture | unasked | vigil | whoever | witness(es)?
    | (by|of)\ the\ (\w+\ )*(\w+'s\ )?word | by\ (its|his)\ word | believed?
    | (a|the|one|two|second|first|last|three)\ looks? | looks\ only
    | (is|are|was|were|be|being)\ told | tells?\ of | gives?\ (\w+\ )?back
    )\b"""
)
"""Words of a private language, or translated ones. CONTRIBUTING.md says which terms to use instead."""


@pytest.mark.parametrize("page", EACH)
def test_a_page_has_no_banned_words(page: Path) -> None:
    lines = enumerate(page.read_text().splitlines(), 1)
    found = [f"{number}: {match[0]}" for number, line in lines for match in BANNED.finditer(line.lower())]
    assert found == []


@pytest.mark.parametrize("text", ["it is told", "the courier", "two looks", "by the API server's word"])
def test_a_banned_word_is_found(text: str) -> None:
    assert BANNED.search(text.lower())
