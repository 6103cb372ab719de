"""Marks and tables from plain sequences; the one place with colours.

Charts use matplotlib's object interface only, because pyplot is not safe on the thread
of a widget. matplotlib is imported by the first chart, not by this package.
"""

from kit.figures.charts import (
    Series,
    draw_bars,
    draw_lines,
    draw_steps,
    is_wide,
)
from kit.figures.numbers import (
    format_bytes,
    format_number,
    format_rate,
    format_ratio,
    format_seconds,
    format_value,
)
from kit.figures.phases import format_saving
from kit.figures.pictures import Picture, show, to_html, to_png
from kit.figures.stacks import draw_stack
from kit.figures.steps import draw_step
from kit.figures.tables import (
    html_card,
    html_page,
    html_pictures,
    html_progress,
    html_sentence,
    html_table,
    text_table,
)
from kit.figures.theme import COLOURS, PANEL_STYLE, PHASES, SERIES_COLOURS
from kit.figures.timelines import Span, draw_timeline

__all__ = [
    "COLOURS",
    "PANEL_STYLE",
    "PHASES",
    "SERIES_COLOURS",
    "Picture",
    "Series",
    "Span",
    "draw_bars",
    "draw_lines",
    "draw_stack",
    "draw_step",
    "draw_steps",
    "draw_timeline",
    "format_bytes",
    "format_number",
    "format_rate",
    "format_ratio",
    "format_saving",
    "format_seconds",
    "format_value",
    "html_card",
    "html_page",
    "html_pictures",
    "html_progress",
    "html_sentence",
    "html_table",
    "is_wide",
    "show",
    "text_table",
    "to_html",
    "to_png",
]
