"""The page's template. Imported with the first request, so that other daemons do not load Jinja."""

from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from agent.exporters.web.page_view import PageView

_TEMPLATES: Final = Environment(
    loader=PackageLoader("agent.exporters.web"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
)


def page(view: PageView | None, style: str, *, refresh: int, links: tuple[str, ...], version: str, mode: str) -> str:
    """Render the template. `view` is None before the first sync; `refresh`: seconds, 0 when paused."""
    return _TEMPLATES.get_template("page.html").render(
        view=view, style=style, refresh=refresh, links=links, version=version, mode=mode
    )
