"""A picture shows what was given, in words too, and your style stays yours."""

import html
import math
import re

import matplotlib.style
import numpy
import pytest
from IPython.core.formatters import DisplayFormatter
from matplotlib.container import ErrorbarContainer

from kit import figures
from kit.figures import Span

VALUES = [770, 1120, 1578]
LOWS = [755, 1090, 1540]
HIGHS = [785, 1150, 1610]


def draw_bars():
    more = {"title": "c wins", "unit": "items/s", "baseline": 0}
    return figures.draw_bars([*"abc"], VALUES, LOWS, HIGHS, predicted=[800], **more)


def draw_lines():
    series = {
        "here": ([1, 2, 4], [10, 18, None], [9, 17, None], [11, 19, None], "measured"),
        "model": ([1, 2, 4], [10, 20, 20], None, None, "predicted"),
    }
    return figures.draw_lines(series, title="It grows", xlabel="n", ylabel="items/s")


def draw_step():
    shares = {"python": 0.015, "input": 0.61, "forward": 0.14, "backward": 0.235}
    savings = [("a", 0.61, 0.58, 0.64), ("b", 0.02, -0.01, 0.05)]
    return figures.draw_step(shares, savings, title="It waits", step_seconds=0.1)


def draw_timeline():
    lanes = {
        "main thread": [Span(0, 0.055, "input", ""), Span(0.055, 0.1, "sync", "")],
        "backward thread": [],
        "device 0": [Span(0.02, 0.06, "forward", "a"), Span(0.04, 0.09, "", "b")],
    }
    return figures.draw_timeline(lanes, title="One waits", marks=[0.1, 0, 0.05])


#: What is drawn, and numbers that its alt text must say.
SAID = [
    (draw_bars, ["c wins", "a: 770", "755 to 785", "b: 1,120", "Predicted: a: 800"]),
    (draw_lines, ["It grows", "1: 10.0", "9.00 to 11.0", "4: unknown", "4: 20.0"]),
    (draw_step, ["It waits", "data: 61 %, 61.0 ms", "58 % to 64 %"]),
    (draw_timeline, ["One waits", "backward thread: idle", "idle 30 %", "b, 50.0 ms"]),
]


@pytest.mark.parametrize(("draw", "words"), SAID)
def test_a_picture_shows_itself_in_a_cell_and_says_its_numbers(draw, words):
    figure = draw()
    assert not [word for word in words if word not in figure.alt], figure.alt
    for shown in (figure, figure.axes[0]):
        bundle, _ = DisplayFormatter().format(shown)
        (alt,) = re.findall(r'<img alt="([^"]*)"', bundle["text/html"])
        assert html.unescape(alt) == figure.alt


def test_a_picture_without_words_is_refused():
    with pytest.raises(ValueError, match="alt text"):
        figures.show(matplotlib.figure.Figure((2, 1)))


def test_a_readers_style_stays_and_changes_no_picture():
    plain = figures.to_html(draw_bars(), "alt")
    with matplotlib.style.context("dark_background"):
        before = dict(matplotlib.rcParams)
        assert figures.to_html(draw_bars(), "alt") == plain
        assert dict(matplotlib.rcParams) == before


def texts_of(found):
    return [text.get_text() for text in found]


def intervals_of(axes, along):
    found = [c for c in axes.containers if isinstance(c, ErrorbarContainer)]
    return [bar.lines[2][0].get_segments()[0][:, along].tolist() for bar in found]


def test_bars_are_as_long_as_their_values_with_intervals_and_numbers():
    (axes,) = draw_bars().axes
    assert [bar.get_width() for bar in axes.patches] == VALUES
    ends = [[low, high] for low, high in zip(LOWS, HIGHS, strict=True)]
    assert intervals_of(axes, 0) == ends
    assert texts_of(axes.texts) == ["770", "1,120", "1,578"]
    assert texts_of(axes.get_yticklabels()) == [*"abc"] and axes.yaxis_inverted()
    assert axes.get_xlim()[0] == 0 and axes.get_xlabel() == "items/s"


def test_lines_pass_through_their_points_with_intervals():
    (axes,) = draw_lines().axes
    here, model = [line for line in axes.lines if line.get_label() in ("here", "model")]
    numpy.testing.assert_equal(here.get_ydata(), [10, 18, math.nan])
    assert model.get_xydata().tolist() == [[1, 10], [2, 20], [4, 20]]
    assert intervals_of(axes, 1) == [[9, 11], [17, 19]]
    assert texts_of(axes.get_legend().get_texts()) == ["here", "model"]
    assert axes.get_ylim()[0] == 0 and axes.get_ylabel() == "items/s"


def test_values_over_more_than_ten_have_a_logarithmic_axis_and_no_bars():
    (axes,) = figures.draw_bars([*"ab"], [2, 900], title="T", unit="1/s").axes
    assert axes.get_xscale() == "log" and not axes.patches, "a bar has no zero there"
    points = [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "o"]
    assert points == [2, 900]


def test_a_step_is_parted_by_its_shares():
    axes, saved = draw_step().axes
    ends = [bar.get_x() + bar.get_width() for bar in axes.patches]
    assert ends == pytest.approx([0.61, 0.75, 0.985, 1.0])
    assert texts_of(saved.texts) == ["61 % [58, 64]", "2.0 % [−1.0, 5.0]"]


def test_no_text_of_a_readers_becomes_markup():
    text = "<script>&"
    pages = figures.html_table([text, text], [[text, text]], title=text, details=[text])
    pages += figures.html_sentence(text, text) + figures.html_page(text, text=text)
    assert "<script" not in pages and pages.count("&lt;script&gt;&amp;") == 10
