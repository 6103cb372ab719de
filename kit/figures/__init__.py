"""Pictures and tables from plain sequences; the one place with colors.

matplotlib and pandas are imported by the first picture or table, not by this package.
"""

from kit.figures.charts import Row, Series, draw_bars, draw_lines
from kit.figures.steps import Span, draw_step, draw_timeline
from kit.figures.style import COLORS, PHASES, kit_look, show, to_html
from kit.figures.tables import html_page, html_sentence, html_table, text_table
from kit.figures.words import (
    format_bytes,
    format_number,
    format_saving,
    format_seconds,
    format_value,
    is_wide,
)

__all__ = [
    "COLORS",
    "PHASES",
    "Row",
    "Series",
    "Span",
    "draw_bars",
    "draw_lines",
    "draw_step",
    "draw_timeline",
    "format_bytes",
    "format_number",
    "format_saving",
    "format_seconds",
    "format_value",
    "html_page",
    "html_sentence",
    "html_table",
    "is_wide",
    "kit_look",
    "show",
    "text_table",
    "to_html",
]
