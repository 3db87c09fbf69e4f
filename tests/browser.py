"""Pages in a real browser: what they request and complain about, their contrasts, and their width."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Browser, sync_playwright
from playwright.sync_api import Page as BrowserPage

from tests.wire import needs

CHROMIUM: Final = Path("/usr/bin/chromium")

_CONTRASTS: Final = """
() => {
  const numbers = (text) => (text.match(/rgba?\\([^)]*\\)/g) || []).map((one) => one.match(/[\\d.]+/g).map(Number));
  const luminance = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ratio = (one, other) => {
    const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  };
  const seen = (colour) => colour.length < 4 || colour[3] === 1;
  const hatch = !document.querySelector('.ground') ? [] : ['.ground', '.line'].map((name) => {
    const style = getComputedStyle(document.querySelector(name));
    return numbers(name === '.line' ? style.stroke : style.fill)[0];
  });
  const behind = (element) => {
    const cell = element.closest('svg g');
    if (cell) {
      const fill = getComputedStyle(cell.querySelector('rect')).fill;
      return fill.startsWith('url') ? hatch : numbers(fill);
    }
    for (let one = element; one; one = one.parentElement) {
      const style = getComputedStyle(one);
      const colours = numbers(style.backgroundImage + style.backgroundColor).filter(seen);
      if (colours.length) return colours;
    }
    return [[255, 255, 255]];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement, words = walker.currentNode.data.trim();
    if (!words || ['STYLE', 'title'].includes(element.tagName)) continue;
    const style = getComputedStyle(element);
    const colour = numbers(element.closest('svg') ? style.fill : style.color)[0];
    found.push([Math.min(...behind(element).map((other) => ratio(colour, other))), words]);
  }
  return found.sort(([one], [other]) => one - other);
}
"""
"""Each text with its lowest contrast to its background (WCAG 2), the lowest first."""

_FOCUSED: Final = """
() => { const one = document.activeElement; return one === document.body ? null
  : one.tagName.toLowerCase() + ': ' + (one.getAttribute('aria-label') || one.textContent).trim(); }
"""


@dataclass
class View:
    """One page in the browser."""

    page: BrowserPage
    complaints: list[str] = field(default_factory=list)  # Console errors and warnings
    requested: list[str] = field(default_factory=list)  # All requested URLs

    def poorest_contrast(self) -> tuple[float, str]:
        found: list[tuple[float, str]] = self.page.evaluate(_CONTRASTS)
        return found[0]

    def open_details(self) -> None:
        self.page.evaluate(
            "for (const found of document.querySelectorAll('details')) found.open = true"
        )

    def overflow(self) -> int:
        """Return how many pixels the page is wider than its window."""
        beyond: int = self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )  # fmt: skip
        return beyond

    def tab_order(self) -> list[str]:
        """Press Tab from start to end and return the focused elements."""
        order: list[str] = []
        while len(order) < 60:
            self.page.keyboard.press("Tab")
            focused = self.page.evaluate(_FOCUSED)
            if focused is None or focused in order[:1]:
                break
            order.append(focused)
        return order


@contextmanager
def looking_at(browser: Browser, url: str, **how: Any) -> Iterator[View]:
    """Open a page without JavaScript."""
    context = browser.new_context(java_script_enabled=False, **how)
    page = context.new_page()
    view = View(page)
    page.on("console", lambda text: view.complaints.append(text.text))
    page.on("pageerror", lambda error: view.complaints.append(str(error)))
    page.on("request", lambda request: view.requested.append(request.url))
    page.goto(url)
    try:
        yield view
    finally:
        context.close()


@contextmanager
def chromium() -> Iterator[Browser]:
    needs(CHROMIUM.exists(), "Debian's chromium, which `make packages` installs")
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
