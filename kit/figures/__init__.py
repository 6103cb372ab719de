"""Pictures and tables from plain sequences; the one place with colours.

Charts use matplotlib's object interface only, because pyplot is not safe on the thread
of a widget. matplotlib is imported by the first chart, not by this package.
"""

from kit.figures.charts import (
    Row,
    Series,
    draw_bars,
    draw_lines,
    draw_stack,
    draw_steps,
)
from kit.figures.drawings import Drawing
from kit.figures.html import (
    html_card,
    html_page,
    html_pictures,
    html_progress,
    html_sentence,
    html_table,
    show,
    text_table,
    to_html,
)
from kit.figures.steps import Span, draw_step, draw_timeline
from kit.figures.style import (
    COLOURS,
    PHASES,
    WIDTH,
    format_amount,
    format_bytes,
    format_number,
    format_saving,
    format_seconds,
    format_value,
    is_wide,
)

__all__ = [
    "COLOURS",
    "PHASES",
    "WIDTH",
    "Drawing",
    "Row",
    "Series",
    "Span",
    "draw_bars",
    "draw_lines",
    "draw_stack",
    "draw_step",
    "draw_steps",
    "draw_timeline",
    "format_amount",
    "format_bytes",
    "format_number",
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
]
