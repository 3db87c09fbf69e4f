"""The page's template, filled in. Imported with the first view: a daemon that nobody looks at has no Jinja."""

from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from agent.exporters.web.page_view import View

_TEMPLATES: Final = Environment(
    loader=PackageLoader("agent.exporters.web"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
)


def page(view: View | None, style: str, *, refresh: int, links: tuple[str, ...]) -> str:
    """Fill it in; `view` is None before the first round. `refresh`: seconds; 0: the page stands still."""
    return _TEMPLATES.get_template("page.html").render(view=view, style=style, refresh=refresh, links=links)
