"""The page of the figures: what a run writes, and what it keeps."""

from tests.bench import page

_PAGE = "# Figures\n\nhead\n\n## Store\n\nold store\n\n## Cleaning\n\nold cleaning\n\n## In a pod\n\nby hand\n"
_ORDER = ("store", "containerd", "cleaning")


def test_a_whole_run_keeps_only_what_is_written_by_hand() -> None:
    written = page.whole("# Figures\n\nnew head\n", ["## Store\n\nnew store\n"], _PAGE)
    assert written == "# Figures\n\nnew head\n\n## Store\n\nnew store\n\n## In a pod\n\nby hand\n"


def test_a_section_that_is_measured_alone_replaces_its_own_and_says_when() -> None:
    alone = page.measured_alone("## Store\n\nnew store\n", "today, load 0.1.")
    written = page.replaced(_PAGE, {"store": alone}, _ORDER)
    assert written == _PAGE.replace("old store", "Measured on its own: today, load 0.1.\n\nnew store")


def test_a_section_that_the_page_lacks_goes_where_it_belongs() -> None:
    written = page.replaced(_PAGE, {"containerd": "## Containerd\n\nfirst\n"}, _ORDER)
    assert written == _PAGE.replace("## Cleaning", "## Containerd\n\nfirst\n\n## Cleaning")
    assert page.replaced(written, {"containerd": "## Containerd\n\nfirst\n"}, _ORDER) == written
