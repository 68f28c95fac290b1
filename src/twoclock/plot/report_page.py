"""HTML and Markdown reports from jinja2 templates, with one style sheet and one script for all of them."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from pathlib import Path

import jinja2

_SHARED = Path(__file__).parent / "templates"


def render_page(
    template_folder: str | Path,
    name: str,
    *,
    filters: dict[str, Callable[..., str]] | None = None,
    finalize: Callable[[object], object] | None = None,
    **context: object,
) -> str:
    """Render a template; ``{% include "report.css" %}`` and ``{% include "report.js" %}`` work in each.

    Args:
        template_folder: where the template is.
        name: its file; values are escaped as HTML if it ends in ".html.j2".
        filters: functions that the template may apply to a value, by name.
        finalize: applied to every value before it is written.
        context: what the template is filled with; a name that is missing is an error.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([template_folder, _SHARED]),
        autoescape=name.endswith(".html.j2"),
        finalize=finalize,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(filters or {})
    return environment.get_template(name).render(**context)


def embed_svg(svg: bytes) -> tuple[str, int]:
    """Return a picture as a data URI, and its natural width in CSS pixels."""
    points = re.search(rb'<svg[^>]*? width="([\d.]+)pt"', svg)
    width = round(float(points[1]) * 96 / 72) if points else 960
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode(), width
