"""A picture shows what was given, in words too, and your style stays yours."""

import base64
import html
import io
import itertools
import math
import re

import matplotlib.style
import numpy
import pytest
from drawing import Drawing
from IPython.core.formatters import DisplayFormatter
from matplotlib.colors import to_rgb
from matplotlib.container import ErrorbarContainer
from PIL import Image

from kit import figures
from kit.figures import COLORS, PHASES, Span
from kit.figures.style import PHASE_LOOKS

RATES = [770, 1120, 1578], [755, 1090, 1540], [785, 1150, 1610]
#: In the second row, an interval is absurd.
ABSURD = [2.0, 1.0, 1.5], [1.8, 1e-14, 1.4], [2.2, 5e21, 1.6]
THREE = {
    "here": ([1, 2, 4], [10, 18, 20], [9, 17, None], [11, 19, None], "measured"),
    "predicted, here": ([1, 2, 4], [10, 20, 20], None, None, "predicted"),
    "elsewhere": ([1, 2], [40, 90], None, None, "recorded"),
}
LOOP = {"python": 0.015, "input": 0.61, "forward": 0.14, "backward": 0.235}
SAVINGS = [("a", 0.61, 0.58, 0.64), ("b", 0.02, -0.01, 0.05)]
LANES = {
    "main thread": [Span(0, 0.055, "input", ""), Span(0.055, 0.1, "sync", "")],
    "backward thread": [],
    "device 0": [Span(0.02, 0.06, "forward", "a"), Span(0.04, 0.09, "forward", "b")],
}


def bars(*columns, **more):
    more = {"labels": "abc"[: len(columns[0])], "title": "c wins", "unit": "1/s"} | more
    return figures.draw_bars(more.pop("labels"), *columns, **more)


def lines(series, **more):
    more = {"title": "It grows", "xlabel": "workers", "ylabel": "items/s"} | more
    return figures.draw_lines(series, **more)


def line(ys, xs=(1, 2, 3), **more):
    return lines({"mine": (xs, ys, None, None, "measured")}, **more)


def step():
    return figures.draw_step(LOOP, SAVINGS, title="It waits", step_seconds=0.1)


def timeline():
    return figures.draw_timeline(LANES, title="One waits", marks=[0.1, 0, 0.05])


#: What is drawn, and what its alt text must say.
TOLD = {
    "bars": (lambda: bars(*RATES), "c wins. a: 770 (95 % interval 755 to 785); b: 1,"),
    "bytes": (lambda: bars([167_945_694], unit="bytes of peak memory"), "a: 168 MB"),
    "unknown": (lambda: bars([7, None, math.nan]), "b: unknown; c: unknown"),
    "predicted": (lambda: bars(*RATES, predicted=[800, None]), "Predicted: a: 800"),
    "no bars": (lambda: bars([]), "c wins"),
    "lines": (lambda: lines(THREE), "here: 1: 10.0 (95 % interval 9.00 to 11.0); 2:"),
    "gap": (lambda: line([1, None, 3]), "1: 1.00; 2: unknown; 3: 3.00"),
    "nothing": (lambda: line([math.nan], [1]), "mine: 1: unknown"),
    "dense": (
        lambda: line([*range(9, 60), 2, *range(10, 57), 4], range(100)),
        "mine: 0: 9.00; 51: 2.00; 50: 59.0; 99: 4.00.",
    ),
    "step": (step, "waiting for data: 61 %, 61.0 ms; forward: 14 %, 14.0 ms"),
    "timeline": (
        timeline,
        "backward thread: idle. device 0: forward 70 %, idle 30 %; longest: b, 50.0 ms",
    ),
}


@pytest.mark.parametrize("name", TOLD)
def test_a_picture_shows_itself_in_a_cell_and_says_what_it_shows(name):
    draw, words = TOLD[name]
    figure = draw()
    assert words in figure.alt
    for shown in (figure, figure.axes[0]):
        bundle, _ = DisplayFormatter().format(shown)
        (alt,) = re.findall(r'<img alt="([^"]*)"', bundle["text/html"])
        assert "<" not in alt and html.unescape(alt) == figure.alt


def test_a_picture_without_words_is_refused():
    with pytest.raises(ValueError, match="alt text"):
        figures.show(matplotlib.figure.Figure((2, 1)))


def pixels_of(figure):
    page = figures.to_html(figure, "alt")
    data = base64.b64decode(re.search(r"base64,([^\"]+)", page)[1])
    assert len(data) < 60_000
    return numpy.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)


@pytest.mark.parametrize("name", ["predicted", "lines", "step", "timeline"])
@pytest.mark.parametrize("style", ["dark_background", "seaborn-v0_8-poster"])
def test_a_readers_style_changes_no_picture_and_no_picture_changes_it(name, style):
    draw, _ = TOLD[name]
    plain = pixels_of(draw())
    assert plain[0, 0].min() > 250, "a light card, in a dark notebook too"
    with matplotlib.style.context(style):
        before = dict(matplotlib.rcParams)
        styled = pixels_of(draw())
        assert dict(matplotlib.rcParams) == before
    assert styled.shape == plain.shape and (abs(styled - plain) > 32).mean() < 1e-4


def texts_of(found):
    return [text.get_text() for text in found]


def intervals_of(axes, along):
    found = [c for c in axes.containers if isinstance(c, ErrorbarContainer)]
    return [bar.lines[2][0].get_segments()[0][:, along].tolist() for bar in found]


def test_bars_are_as_long_as_their_values_the_first_at_the_top():
    figure = bars(*RATES, baseline=0, predicted=[800])
    (axes,) = figure.axes
    assert [bar.get_width() for bar in axes.patches] == RATES[0]
    assert intervals_of(axes, 0) == [[755, 785], [1090, 1150], [1540, 1610]]
    assert texts_of(axes.texts) == ["770", "1,120", "1,578"]
    assert texts_of(axes.get_yticklabels()) == [*"abc"] and axes.yaxis_inverted()
    assert axes.get_xlim()[0] == 0 and axes.get_xlabel() == "1/s"
    hatched = [bool(bar.get_hatch()) for bar in axes.patches]
    assert hatched == [True, False, False], "the baseline differs in more than color"
    assert texts_of(figure.legends[0].get_texts()) == ["predicted"]


def test_one_absurd_interval_does_not_flatten_all_others_and_is_marked_as_cut():
    (axes,) = bars(*ABSURD).axes
    assert 3 <= axes.get_xlim()[1] < 4
    cut = [x.get_ydata().tolist() for x in axes.lines if x.get_marker() == ">"]
    assert cut == [[1]]
    (axes,) = lines({"a": ([1, 2, 3], *ABSURD, "measured")}).axes
    assert axes.get_yscale() == "linear" and 3 <= axes.get_ylim()[1] < 10 / 3


def test_values_over_more_than_ten_are_points_on_a_logarithmic_axis():
    (axes,) = bars([2, 900], predicted=[0.1, None]).axes
    assert axes.get_xscale() == "log" and not axes.patches, "a bar has no zero there"
    points = [x.get_xdata()[0] for x in axes.lines if x.get_marker() == "o"]
    assert points == [2, 900] and axes.get_xlim()[0] < 0.1
    assert line([0.5, 7, 100]).axes[0].get_yscale() == "log"


@pytest.mark.parametrize("values", [[3, 40], [90, 1000], [0.2, 900]])
def test_a_logarithmic_axis_has_numbers_to_read_it_by(values):
    (axes,) = line(values, [1, 2]).axes
    low, high = axes.get_ylim()
    ticks = [tick for tick in axes.get_yticks() if low <= tick <= high]
    assert len(ticks) >= 2 and all(texts_of(axes.get_yticklabels()))


def test_lines_pass_through_their_points_and_differ_in_more_than_color():
    (axes,) = lines(THREE).axes
    here, model, elsewhere = [x for x in axes.lines if x.get_label() in THREE]
    assert here.get_xydata().tolist() == [[1, 10], [2, 18], [4, 20]]
    assert intervals_of(axes, 1) == [[9, 11], [17, 19]]
    assert (here.get_marker(), here.get_linestyle()) == ("o", "-")
    assert (model.get_marker(), model.get_linestyle()) == ("", "--")
    assert model.get_color() == here.get_color() != elsewhere.get_color()
    assert texts_of(axes.get_legend().get_texts()) == [*THREE]
    assert axes.get_ylim()[0] == 0 and axes.get_ylabel() == "items/s"
    assert math.isnan(line([1, None, 3]).axes[0].lines[0].get_ydata()[1])
    with pytest.raises(ValueError, match=r"mine: no kind 'seen'.*'measured'"):
        lines({"mine": ([1], [1], None, None, "seen")})


def test_values_below_zero_have_an_axis_of_their_own_and_their_texts_beside_them():
    (axes,) = bars([-0.02, -0.01]).axes
    low, high = axes.get_xlim()
    assert low < -0.02 and high == 0
    assert all(text.xy[0] >= 0 for text in axes.texts), "not on the bar"
    assert line([-3, -1], [1, 2]).axes[0].get_ylim()[1] == 0


def test_six_lines_differ_in_color_and_in_marker():
    columns = [1, 2], [5, 9], None, None, "measured"
    (axes,) = lines({f"line {n}": columns for n in range(6)}).axes
    assert len({x.get_color() for x in axes.lines}) == 6
    assert len({x.get_marker() for x in axes.lines}) == 6


@pytest.mark.parametrize(
    "xs", [[16, 256], [1, 2, 4], [0, 1, 2, 4, 64], [2**12, 2**16, 2**20]]
)
def test_every_choice_has_its_tick(xs):
    (axes,) = line([5] * len(xs), xs, logx=True).axes
    assert axes.xaxis.get_majorticklocs().tolist() == xs
    assert texts_of(axes.get_xticklabels()) == [f"{x:,}" for x in xs]


def test_large_round_numbers_are_written_short():
    (axes,) = line([5] * 3, [1, 1000, 10**7], logx=True).axes
    assert texts_of(axes.get_xticklabels()) == ["1", "1 k", "10 M"]


def test_bytes_are_written_as_memory():
    (axes,) = line([0, 1e8, 15e7], ylabel="bytes of memory").axes
    assert "100 MB" in texts_of(axes.get_yticklabels())


def test_a_step_is_parted_by_its_shares_and_each_phase_is_named_once():
    axes, saved = step().axes
    shares = {phase: LOOP[phase] for phase in PHASES if phase in LOOP}
    ends = [x.get_x() + x.get_width() for x in axes.patches]
    assert ends == pytest.approx([*itertools.accumulate(shares.values())])
    told = texts_of([*axes.texts, *axes.get_legend().get_texts()])
    named = sorted(re.split(r"\n|  ", text)[0] for text in told if text)
    assert named == sorted(PHASES[phase] for phase in shares)
    assert texts_of(saved.texts) == ["61 % [58, 64]", "2.0 % [−1.0, 5.0]"]
    hatched = [bool(bar.get_hatch()) for bar in saved.patches]
    assert hatched == [False, True], "what may save nothing looks otherwise"


def test_a_timeline_shows_when_each_lane_was_busy():
    figure = timeline()
    (axes,), (legend,) = figure.axes, figure.legends
    assert texts_of(axes.get_yticklabels()) == [*LANES] and axes.yaxis_inverted()
    assert axes.get_xlim() == pytest.approx((0, 0.1))
    phases = [("input", 1), ("forward", 2), ("sync", 1)]
    expected = [f"{PHASES[phase]} ({count})" for phase, count in phases]
    assert texts_of(legend.get_texts()) == expected
    shown = {text.get_text(): text.get_position() for text in axes.texts}
    assert (shown["idle"][1], shown["step 1"][0], shown["step 2"][0]) == (1, 0, 0.05)


def test_what_is_too_narrow_for_its_name_is_named_and_counted_below():
    wide = Span(0, 0.9, "forward", "forward")
    narrow = [Span(0.9 + n / 1e3, 0.9005 + n / 1e3, "sync", "item") for n in range(3)]
    more = [Span(0.95 + n / 1e3, 0.9501 + n / 1e3, "", f"kind {n}") for n in range(9)]
    figure = figures.draw_timeline({"main": [wide, *narrow, *more]}, title="T")
    line = figure.axes[0].get_xlabel().replace("\n", " ")
    assert line.startswith("time Narrow: 3 × item, 1 × kind") and "4 others" in line
    assert "3 × item" in figure.alt


def test_a_drawing_has_its_boxes_and_lanes_where_they_were_asked_for():
    drawing = Drawing("T", columns=4, rows=2, alt="A box, then a lane")
    drawing.box(0, 0, 2, 1, "a box", "measured")
    drawing.lane(1, "worker", [(0, 1, "wait", "zone"), (1, 4, "train", "measured")])
    boxes = [(box.get_xy(), box.get_width()) for box in drawing.axes.patches]
    assert boxes == [((0, 0), 2), ((0, 1.1), 1), ((1, 1.1), 3)]
    assert {"a box", "wait", "train"} <= {*texts_of(drawing.axes.texts)}
    assert texts_of(drawing.axes.get_yticklabels()) == ["worker"]
    assert drawing.figure.alt == "T. A box, then a lane."


def luminance(color):
    red, green, blue = (((x + 0.055) / 1.055) ** 2.4 for x in to_rgb(color))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_words_on_every_color_can_be_read():
    pairs = [(fill, words) for fill, words, _ in PHASE_LOOKS.values()]
    pairs += [(COLORS["card"], COLORS[name]) for name in ("ink", "muted", "recorded")]
    for pair in pairs:
        dark, light = sorted(map(luminance, pair))
        assert (light + 0.05) / (dark + 0.05) >= 4.5, pair


# Machado, Oliveira and Fernandes (2009): colors as seen without one kind of cone.
BLIND = [
    ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
    ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
    ((1.256, -0.077, -0.179), (-0.078, 0.931, 0.148), (0.005, 0.691, 0.304)),
]


@pytest.mark.parametrize("matrix", BLIND)
def test_the_color_blind_tell_the_phases_apart(matrix):
    hatches = {hatch for *_, hatch in PHASE_LOOKS.values()}
    assert len(hatches) == len(PHASE_LOOKS) == len(PHASES) + 1
    fills = numpy.array([to_rgb(fill) for fill, *_ in PHASE_LOOKS.values()])
    mixed = ((fills + 0.055) / 1.055) ** 2.4 @ numpy.transpose(matrix)
    seen = mixed.clip(0) ** (1 / 2.4)
    assert all(math.dist(a, b) > 0.12 for a, b in itertools.combinations(seen, 2))


def test_no_text_of_a_readers_becomes_markup():
    text = "<script>&"
    pages = figures.html_table([text, text], [[text, text]], title=text, details=[text])
    pages += figures.html_sentence(text, text) + figures.html_page(text, text=text)
    assert "<script" not in pages and pages.count("&lt;script&gt;&amp;") == 10


def test_numbers_of_a_table_stand_below_each_other_and_words_begin_together():
    rows = [["none", 770, None, "same"], ["auto", "1,200", "[1, 2]", "faster"]]
    head, first, second = figures.text_table(["by", "rate", "", "is"], rows).split("\n")
    assert first.index("770") + 3 == second.index("1,200") + 5 == head.index("rate") + 4
    assert first.index("same") == second.index("faster") == head.index("is")
    for write in (figures.text_table, figures.html_table):
        with pytest.raises(ValueError, match="zip"):
            write(["a", "b"], [[1]])
