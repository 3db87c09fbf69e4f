"""The page in a real browser, on a phone and on a screen, in both color schemes."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.browser import chromium, looking_at
from tests.exporters.built import recording_of, reports_of
from tests.exporters.served import Server

NODES = ("incident", "devices-storm", "every-state", "foreign-names", "dark", "volumes-lost")
PHONE, SCREEN = {"width": 390, "height": 844}, {"width": 1280, "height": 900}
_CELLS = """
() => [...document.querySelectorAll('table.stack td, table.stack th')]
  .filter((cell) => cell.closest('thead') === null && cell.checkVisibility())
  .map((cell) => cell.getBoundingClientRect().right)
"""
"""Where each visible cell of the stacked tables ends."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as launched:
        yield launched


@pytest.mark.parametrize("name", NODES)
def test_it_is_legible_and_as_wide_as_its_window(
    name: str, server: Server, browser: Browser
) -> None:
    server.page(reports_of(recording_of(name))[-1])
    url = f"http://127.0.0.1:{server.port}/?refresh=off"
    for scheme in ("light", "dark"):
        for window in (PHONE, SCREEN):
            with looking_at(browser, url, color_scheme=scheme, viewport=window) as view:
                view.open_details()
                assert (view.complaints, view.overflow()) == ([], 0)
                contrast, words = view.poorest_contrast()
                assert contrast >= 4.5, f"{scheme}: {words!r} has {contrast:.1f}"
                if window is PHONE:
                    assert max(view.page.evaluate(_CELLS), default=0) <= PHONE["width"]


def test_critical_differs_from_warning_without_its_colors(server: Server, browser: Browser) -> None:
    signs = set()
    for name in ("incident", "power-cut"):
        server.page(reports_of(recording_of(name))[-1])
        url = f"http://127.0.0.1:{server.port}/?refresh=off"
        with looking_at(browser, url) as view:
            sign = "getComputedStyle(document.querySelector('.headline .icon'), '::before').content"
            signs.add(
                (view.page.evaluate(sign), view.page.locator("h1").inner_text().split(":")[0])
            )
            steps, list_ = (
                view.page.locator(".finding .do").first,
                view.page.locator(".finding > ul"),
            )
            box, below = steps.bounding_box(), list_.last.bounding_box()
            assert box
            assert below
            assert box["y"] < below["y"], "steps come first"
            assert view.page.locator("h3", has_text="Leaked addresses").count() == 1
    assert {word for _, word in signs} == {"Critical", "Warning"}
    assert len({sign for sign, _ in signs}) == 2
