"""Everybody can read a picture, it shows what was given, and your style stays yours."""

import base64
import functools
import html
import io
import itertools
import math
import re
from functools import partial

import matplotlib.style
import numpy
import pytest
from hypothesis import given, strategies as st
from IPython.core.formatters import DisplayFormatter
from matplotlib.colors import to_hex, to_rgb
from matplotlib.container import ErrorbarContainer
from matplotlib.text import Text
from PIL import Image

from kit import figures
from kit.figures import PHASES, Span

NAN = math.nan
LONG = "a_very_long_name_of_an_experiment" * 4
TITLE = "One finding, in a sentence that takes more than one line: $5, not $6; " * 3
#: Values with the ends of their intervals; in the second one an interval is absurd.
RATES = [770, 1120, 1578], [755, 1090, 1540], [785, 1150, 1610]
ABSURD = [2.0, 1.0, 1.5], [1.8, 1e-14, 1.4], [2.2, 5e21, 1.6]
THREE = {
    "here": ([1, 2, 4], [10, 18, 20], [9, 17, None], [11, 19, None], "measured"),
    "model": ([1, 2, 4], [10, 20, 20], None, None, "predicted"),
    "elsewhere": ([1, 2], [40, 90], None, None, "recorded"),
}
CLOSE = {f"line {n}": ([1, 2], [5, 9], None, None, "measured") for n in range(6)}
NAMES = ["predicted", "predicted, b", "a", "b", "predicted, a", "measured"]
KINDS = {name: "predicted" if "pre" in name else "measured" for name in NAMES}
PAIRS = {x: ([1, 2], [n, 9], None, None, KINDS[x]) for n, x in enumerate(NAMES)}
MEMORY = {"weights": [40] * 4, "gradients": [0, 0, 20, 0], "kept": [0, 200, 100, 0]}
LOOP = {"python": 0.015, "input": 0.61, "forward": 0.14, "backward": 0.235}
SAVINGS = [("a", 0.61, 0.58, 0.64), ("b", 0.02, -0.01, 0.05), (LONG, -0.02, -0.1, 0.1)]
LANES = {
    "main thread": [Span(0, 0.055, "input", ""), Span(0.055, 0.1, "sync", "")],
    "backward thread": [],
    "device 0": [Span(0.02, 0.06, "forward", "a"), Span(0.04, 0.09, "forward", "b")],
}
SPANS = [Span(n / 9, (n + 1) / 9, x, f"{x} " * 8) for n, x in enumerate([*PHASES, ""])]
BUSY = {f"a lane with a rather long name, number {n}": SPANS for n in range(12)}
CHOICES = {"few": [1, 2, 4], "zero": [0, 1, 2, 4, 8, 16, 64], "one": [64]}
CHOICES["many"] = [1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128, 256]
CHOICES["large"] = [2**12, 2**16, 2**20, 2**24]
SHARES = {"one": {"sync": 1.0}, "equal": dict.fromkeys(PHASES, 1 / 8)}
SHARES["tiny"] = dict.fromkeys([*PHASES][1:], 0.007) | {"input": 0.951}


def bars(values, *ends, **more):
    more = {"labels": "abc"[: len(values)], "title": "c wins", "unit": "1/s"} | more
    return partial(figures.draw_bars, more.pop("labels"), values, *ends, **more)


def lines(series, **more):
    more = {"title": "It grows", "xlabel": "workers", "ylabel": "items/s"} | more
    return partial(figures.draw_lines, series, **more)


def line(ys, xs=(1, 2, 3), **more):
    return lines({"mine": (xs, ys, None, None, "measured")}, **more)


def step(shares, *savings, title="It waits", **more):
    more |= {"title": title, "step_seconds": 0.1}
    return partial(figures.draw_step, shares, savings, **more)


TIMELINE, STACK = figures.draw_timeline, partial(figures.draw_stack, range(4), MEMORY)
STACKED = {"title": "T", "xlabel": "x", "ylabel": "B", "regions": [(1, 3, "on")]}
#: How to draw it, and what its alt text must tell.
CATALOGUE = {
    "bars": (bars(*RATES), "Bars, 1/s. c wins. a: 770 (95 % interval 755 to 785); b: "),
    "bars, either sign": (bars([-3e9, 1e-9, 4.5e9]), "b: 1.00e−09; c: 4,500,000,000"),
    "bars, bytes": (
        bars([167_945_694, 5e7], unit="bytes of peak memory"),
        "a: 168 MB; b: 50 MB",
    ),
    "bars, long": (bars(*RATES, labels=[LONG, *"ab"], title=TITLE), f"{LONG}: 770"),
    "bars, absurd": (bars(*ABSURD), "5.00e+21"),
    "bars, wide": (bars([2, 900], [1, 800], [3, 1e6]), "a: 2.00 (95 % interval 1.00"),
    "bars, unknown": (bars([7, None, NAN]), "b: unknown; c: unknown"),
    "bars, predicted": (
        bars(
            *RATES,
            baseline=0,
            recorded={"big, 2025": [("b", 1500, 1400, 1600)]},
            predicted=[800, None, 1500],
            width=5.6,
        ),
        "Predicted: a: 800; c: 1,500.",
    ),
    "no bars": (bars([]), "Bars, 1/s. c wins."),
    "lines": (lines(THREE), "here: 1: 10.0 (95 % interval 9.00 to 11.0); 2: 18.0"),
    "lines, close": (lines(CLOSE, title=TITLE), "line 5: 1: 5.00"),
    "lines, absurd": (lines({"a": ([1, 2, 3], *ABSURD, "measured")}), "to 5.00e+21"),
    "lines, pairs": (lines(PAIRS), "predicted, a: 1: 4.00; 2: 9.00"),
    "lines, wide": (line([0.5, 7, 100]), "1: 0.500"),
    "lines, gap": (line([1, None, 3]), "1: 1.00; 2: unknown; 3: 3.00"),
    "lines, nothing": (line([NAN], [1]), "mine: 1: unknown"),
    "lines, dense": (
        line([*range(9, 60), 2, *range(10, 57), 4], range(100)),
        "mine: 0: 9.00; 51: 2.00; 50: 59.0; 99: 4.00.",
    ),
    "lines, long names": (
        lines(
            {
                f"how='in background', every={n}, elsewhere": columns
                for n, columns in enumerate([(*CLOSE["line 0"][:4], "recorded")] * 7)
            },
            machines={
                f"how='in background', every={n}, elsewhere": "elsewhere"
                for n in range(7)
            },
            width=5.6,
        ),
        "how='in background', every=6, elsewhere: 1: 5.00",
    ),
    "steps": (
        partial(figures.draw_steps, [0.5, 0.01, 0.01], title="T"),
        "measured: 1: 500; 2: 10.0; 3: 10.0. median 10.0 ms: 1: 10.0; 3: 10.0.",
    ),
    "no steps": (partial(figures.draw_steps, [], title="None"), "median unknown"),
    "stack": (
        partial(STACK, marks={"planned": 325}, **STACKED),
        "At most 240, at 1. planned: 325. From 1 to 3: on. weights: 0: 40.0; 1: 40.0",
    ),
    "step": (step(LOOP), "waiting for data: 61 %, 61.0 ms; forward: 14 %, 14.0 ms"),
    "step, doubtful": (
        step(LOOP, (LONG, 0.5, -4, 5), ("b", 0.1, NAN, 1)),
        f"{LONG}: 50 % (95 % interval −400 % to 500 %); b: 10 %",
    ),
    "timeline": (
        partial(TIMELINE, LANES, title="One waits", marks=[0.1, 0, 0.05]),
        "backward thread: idle. device 0: forward 70 %, idle 30 %; longest: b, 50.0 ms",
    ),
    "timeline, full": (
        partial(TIMELINE, BUSY, title=TITLE, marks=[n / 30 for n in range(30)]),
        "number 11: waiting for data 11 %, copies to the device 11 %",
    ),
}
for name, xs in CHOICES.items():
    for logx in (False, True):
        CATALOGUE[f"{name}, {logx=}"] = line([5] * len(xs), xs, logx=logx), ": 5.00"
for name, shares in SHARES.items():
    full = step(shares, *SAVINGS, title=TITLE, overhead=0.31)
    CATALOGUE[f"step, {name}"] = full, "across the phases: 31 %"


@functools.cache
def drawn(name):
    figure = CATALOGUE[name][0]()
    figure.draw_without_rendering()
    return figure


def texts_of(found):
    return [text.get_text() for text in found]


def find_texts(figure):
    beyond = set()  # ticks past the ends of an axis do not show
    for axis in (x for axes in figure.axes for x in (axes.xaxis, axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        ticks = axis.get_major_ticks()
        beyond |= {t.label1 for t in ticks if not low <= t.get_loc() <= high}
    every = set(figure.findobj(Text)) - beyond
    return [text for text in every if text.get_text().strip() and text.get_visible()]


def luminance(colour):
    red, green, blue = (((x + 0.055) / 1.055) ** 2.4 for x in to_rgb(colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("name", CATALOGUE)
def test_all_words_have_room_can_be_read_and_are_told_who_cannot_see(name):
    figure, told = drawn(name), CATALOGUE[name][1]
    # Of the words alone: an annotation's own extent includes its line.
    boxes = {text: Text.get_window_extent(text) for text in find_texts(figure)}
    for (a, box), (b, other) in itertools.combinations(boxes.items(), 2):
        apart = not box.padded(0.5).fully_overlaps(other.padded(0.5))
        assert apart, f"{a.get_text()!r} meets {b.get_text()!r}"
    for text, box in boxes.items():
        inside = 0 <= box.x0 and box.x1 <= figure.bbox.x1
        assert inside and 0 <= box.y0 and box.y1 <= figure.bbox.y1, text
        behind = text.get_bbox_patch() or figure.patch
        colours = text.get_color(), behind.get_facecolor()
        dark, light = sorted(map(luminance, colours))
        assert (light + 0.05) / (dark + 0.05) >= 4.5, text
    shown = figure.get_suptitle()
    assert shown and shown.count("\n") <= 3 and told in figure.alt
    assert shown.replace("\n", " ").removesuffix("…") in figure.alt
    assert all(axes.get_xlabel() for axes in figure.axes if axes.axison)
    heading = next(t for t in find_texts(figure) if t.get_text() == shown)
    assert not heading.get_parse_math(), "$5 is a price"


def test_a_figure_and_its_axes_show_themselves_in_a_cell_with_alt_text():
    figure = bars([1], title='1 < 2 & "so"', width=3)()
    for shown in (figure, figure.axes[0]):
        bundle, _ = DisplayFormatter().format(shown)
        (alt,) = re.findall(r'<img alt="([^"]*)"', bundle["text/html"])
        assert "<" not in alt and html.unescape(alt) == figure.alt
    with pytest.raises(ValueError, match="alt text"):
        figures.show(matplotlib.figure.Figure((2, 1)))


DARK = {"text.color": "white", "axes.facecolor": "black", "figure.facecolor": "k"}
DARK |= {"font.family": "serif", "axes.grid": True, "hatch.linewidth": 3}
DARK |= {"patch.force_edgecolor": True}


def png_of(figure):
    page = figures.to_html(figure, "alt")
    return base64.b64decode(re.search(r"base64,([^\"]+)", page)[1])


def pixels_of(figure):
    picture = Image.open(io.BytesIO(png_of(figure))).convert("RGB")
    return numpy.asarray(picture).astype(int)


STYLED = ["bars, predicted", "bars, wide", "lines", "stack", "step, one", "timeline"]
STYLES = [DARK, "dark_background", "ggplot", "seaborn-v0_8-poster"]


@pytest.mark.parametrize("name", STYLED)
def test_pictures_are_solid_light_and_small_whatever_the_readers_style(name):
    draw = CATALOGUE[name][0]
    data = png_of(draw())
    picture = Image.open(io.BytesIO(data)).convert("RGBA")
    assert picture.size[0] in (1120, 1520) and len(data) < 60_000
    assert picture.getextrema()[3] == (255, 255), "a dark page would shine through"
    assert min(picture.getpixel((0, 0))) > 250


@pytest.mark.parametrize("name", STYLED)
@pytest.mark.parametrize("how", STYLES, ids=["own", *STYLES[1:]])
def test_a_readers_settings_for_matplotlib_change_no_picture(name, how):
    draw = CATALOGUE[name][0]
    plain = pixels_of(draw())
    with matplotlib.style.context(how):
        styled = pixels_of(draw())
    assert styled.shape == plain.shape
    apart = numpy.abs(styled - plain).max(axis=2)
    assert (apart > 32).mean() < 1e-4, "more than the shade of an edge"


def test_drawing_leaves_a_readers_settings_for_matplotlib_alone():
    class Watched(dict):
        def __setitem__(self, name, value):
            raise AssertionError(f"{name} is set while the kit draws")

    before = dict(matplotlib.rcParams)
    settings = type(matplotlib.rcParams)
    unwatched, settings.__setitem__ = settings.__setitem__, Watched.__setitem__
    try:
        for name in ("bars", "lines", "step, one", "timeline", "stack"):
            png_of(CATALOGUE[name][0]())
    finally:
        settings.__setitem__ = unwatched
    assert dict(matplotlib.rcParams) == before


def intervals_of(axes, along):
    found = [c for c in axes.containers if isinstance(c, ErrorbarContainer)]
    return [bar.lines[2][0].get_segments()[0][:, along].tolist() for bar in found]


def test_bars_are_as_long_as_their_values_the_first_at_the_top():
    (axes,) = drawn("bars").axes
    assert [bar.get_width() for bar in axes.patches] == RATES[0]
    assert intervals_of(axes, 0) == [[755, 785], [1090, 1150], [1540, 1610]]
    assert texts_of(axes.texts) == ["770", "1,120", "1,578"]
    assert texts_of(axes.get_yticklabels()) == [*"abc"] and axes.yaxis_inverted()
    assert axes.get_xlim()[0] == 0 and axes.get_xlabel() == "1/s"
    (axes,) = drawn("bars, unknown").axes
    assert len(axes.patches) == 1 and texts_of(axes.texts)[1:] == ["unknown"] * 2
    (axes,) = drawn("bars, absurd").axes
    assert 3 <= axes.get_xlim()[1] < 4, "one absurd interval flattens all the others"
    cut = [x for x in axes.lines if x.get_marker() == ">"]
    assert [x.get_ydata().tolist() for x in cut] == [[1]], "cut, and nothing says so"
    # Baseline, prediction and other machines differ in more than colour.
    (axes,) = drawn("bars, predicted").axes
    base, other, ours = axes.patches
    assert base.get_hatch() and not other.get_hatch() and not ours.get_hatch()
    assert to_hex(base.get_facecolor()) != to_hex(ours.get_facecolor())
    marks = [x for x in axes.collections if x.get_linestyle()[0][1] is not None]
    assert [x.get_segments()[0][0][0] for x in marks] == [800, 1500], "dashed"
    (marker,) = [x for x in axes.lines if x.get_marker() == "D"]
    assert marker.get_xydata().tolist() == [[1500, 1]], "in the row of the same choice"
    assert [text.xy[0] for text in axes.texts] == [800, 1600, 1610], "on a mark"
    (legend,) = axes.figure.legends
    named = ["measured here", "predicted", "recorded on big, 2025"]
    assert texts_of(legend.get_texts()) == named


def test_bars_over_more_than_ten_are_points_on_a_logarithmic_axis():
    (axes,) = drawn("bars, wide").axes
    assert axes.get_xscale() == "log" and not axes.patches, "a bar has no zero there"
    assert axes.get_xlabel() == "1/s (logarithmic)"
    points = [x for x in axes.lines if x.get_marker() == "o"]
    assert [x.get_xdata()[0] for x in points] == [2, 900]
    assert [x.get_ydata()[0] for x in points] == [0, 1]


def test_a_logarithmic_axis_has_room_for_what_others_recorded_and_what_was_predicted():
    elsewhere = {"big, 2025": [("b", 50_000, None, None)]}
    draw = bars([2, 900], predicted=[0.1, None], recorded=elsewhere)
    low, high = draw().axes[0].get_xlim()
    assert low < 0.1 and high > 50_000


def test_a_label_of_many_words_is_whole():
    labels = ["precision=bfloat16, layout=channels_last, batch_size=256, threads=2"] * 2
    figure = figures.draw_bars(labels, [1, 2], title="T", unit="1/s", width=5.6)
    for label in texts_of(figure.axes[0].get_yticklabels()):
        assert label.replace("\n", " ") == labels[0]


def lines_of(name):
    lines = drawn(name).axes[0].lines
    return [line for line in lines if not line.get_label().startswith("_")]


def test_lines_pass_through_their_points_and_differ_in_more_than_colour():
    (axes,) = drawn("lines").axes
    here, model, elsewhere = lines_of("lines")
    assert here.get_xydata().tolist() == [[1, 10], [2, 18], [4, 20]]
    assert elsewhere.get_xydata().tolist() == [[1, 40], [2, 90]]
    assert intervals_of(axes, 1) == [[9, 11], [17, 19]]
    assert here.get_marker() == "o" and here.get_linestyle() == "-"
    assert model.get_linestyle() == "--" and not model.get_marker()
    assert to_hex(elsewhere.get_markerfacecolor()) != to_hex(elsewhere.get_color())
    assert texts_of(axes.texts) == [*THREE] and axes.get_legend() is None
    shown = {x.get_label(): x.get_color() for x in lines_of("lines, pairs")}
    own, other, third = shown["a"], shown["b"], shown["measured"]
    assert shown["predicted, a"] == own != other == shown["predicted, b"]
    assert shown["predicted"] == third not in (own, other)
    first, second, *_ = lines_of("lines, close")
    assert first.get_marker() != second.get_marker()
    assert math.isnan(lines_of("lines, gap")[0].get_ydata()[1]), "a gap is not bridged"


def test_an_axis_begins_at_zero_or_is_logarithmic_and_says_so():
    (axes,), (absurd,) = drawn("lines").axes, drawn("lines, absurd").axes
    assert axes.get_ylim()[0] == 0 and axes.get_ylabel() == "items/s"
    assert absurd.get_yscale() == "linear" and 3 <= absurd.get_ylim()[1] < 10 / 3
    (axes,) = drawn("lines, wide").axes
    assert axes.get_yscale() == "log" and axes.get_ylabel() == "items/s (logarithmic)"
    assert 0.05 < axes.get_ylim()[0] < 0.5 and 100 < axes.get_ylim()[1] < 1000
    assert "planned 325" in [x.get_label() for x in drawn("stack").axes[0].lines]
    (axes,) = line([0, 1e8, 15e7], ylabel="bytes of memory")().axes
    assert "100 MB" in texts_of(axes.get_yticklabels())


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("logx", [False, True])
def test_every_choice_has_its_tick_where_there_is_room(name, logx):
    xs, (axes,) = CHOICES[name], drawn(f"{name}, {logx=}").axes
    assert axes.xaxis.get_minorticklocs().size == 0
    if logx or len(xs) <= 3:
        assert axes.xaxis.get_majorticklocs().tolist() == xs
        assert texts_of(axes.get_xticklabels()) == [f"{x:,}" for x in xs]


@pytest.mark.parametrize("name", SHARES)
def test_a_step_is_parted_by_its_shares_and_each_phase_is_named_once(name):
    axes, saved = drawn(f"step, {name}").axes
    shares = {x: SHARES[name][x] for x in PHASES if x in SHARES[name]}
    ends = [*itertools.accumulate(shares.values())]
    assert [x.get_x() + x.get_width() for x in axes.patches] == pytest.approx(ends)
    told = texts_of([*axes.texts, *axes.get_legend().get_texts()])
    named = sorted(re.split(r"\n|  ", text)[0] for text in told if text)
    assert named == sorted(PHASES[phase] for phase in shares)
    assert texts_of(saved.texts)[:2] == ["61 % [58, 64]", "2.0 % [−1.0, 5.0]"]
    assert [bar.get_width() for bar in saved.patches] == [row[1] for row in SAVINGS]
    hatched = [bool(bar.get_hatch()) for bar in saved.patches]
    assert hatched == [False, True, True], "what may save nothing looks otherwise"


def test_a_timeline_shows_when_each_lane_was_busy():
    (axes,), (legend,) = drawn("timeline").axes, drawn("timeline").legends
    assert texts_of(axes.get_yticklabels()) == [*LANES] and axes.yaxis_inverted()
    assert axes.get_xlim() == pytest.approx((0, 0.1))
    assert axes.get_xlabel().startswith("time")
    named = texts_of(legend.get_texts())
    phases = [("input", 1), ("forward", 2), ("sync", 1)]
    assert named == [f"{PHASES[phase]} ({count})" for phase, count in phases]
    blocks = {x.get_hatch(): x.get_data().edges for x in axes.patches if x.get_hatch()}
    assert list(blocks[legend.get_patches()[0].get_hatch()]) == [0, 0.055]
    shown = {text.get_text(): text.get_position() for text in axes.texts}
    assert (shown["idle"][1], shown["step 1"][0], shown["step 2"][0]) == (1, 0, 0.05)


def test_what_is_too_narrow_for_its_name_is_named_and_counted_below():
    wide = Span(0, 0.9, "forward", "forward")
    narrow = [Span(0.9 + n / 1e3, 0.9005 + n / 1e3, "sync", "item") for n in range(3)]
    more = [Span(0.95 + n / 1e3, 0.9501 + n / 1e3, "", f"kind {n}") for n in range(9)]
    lanes = {"main thread": [wide, *narrow, *more]}
    figure = figures.draw_timeline(lanes, title="T")
    line = figure.axes[0].get_xlabel().replace("\n", " ")
    assert line.startswith("time Narrow: 3 × item, 1 × kind") and "4 others" in line
    assert "3 × item" in figure.alt


def test_more_bands_than_can_be_told_apart_are_refused_by_their_names():
    bands = {name: [1, 2] for name in "abcdefg"}
    with pytest.raises(ValueError, match=r"7 bands .*at most 6"):
        figures.draw_stack([0, 1], bands, title="T", xlabel="x", ylabel="y")


def test_the_median_of_two_steps_lies_between_them():
    assert "median 1.50 s" in figures.draw_steps([1.0, 2.0], title="T").alt


def test_a_drawing_has_its_boxes_arrows_and_lanes_where_they_were_asked_for():
    drawing = figures.Drawing("T", columns=4, rows=2, alt="A box, then a lane")
    drawing.box(0, 0, 2, 1, "a box", "measured")
    drawing.arrow((2, 0.5), (4, 0.5), "to here")
    drawing.lane(1, "worker", [(0, 1, "wait", "input"), (1, 4, "train", "forward")])
    (axes,) = drawing.figure.axes
    boxes = [(box.get_xy(), box.get_width()) for box in axes.patches]
    assert boxes == [((0, 0), 2), ((0, 1.1), 1), ((1, 1.1), 3)]
    assert {"a box", "to here", "wait", "train"} <= {*texts_of(axes.texts)}
    assert texts_of(axes.get_yticklabels()) == ["worker"]
    assert drawing.figure.alt == "T. A box, then a lane."
    bundle, _ = DisplayFormatter().format(drawing)
    assert "A box, then a lane" in bundle["text/html"]
    with pytest.raises(ValueError, match=r"no role 'blue'.*'measured'"):
        drawing.box(0, 0, 1, 1, "", "blue")


# Machado, Oliveira and Fernandes (2009): colours as seen without one kind of cone.
BLIND = [
    ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
    ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
    ((1.256, -0.077, -0.179), (-0.078, 0.931, 0.148), (0.005, 0.691, 0.304)),
]


@pytest.mark.parametrize("matrix", BLIND)
def test_the_colour_blind_tell_the_phases_apart(matrix):
    keys = drawn("timeline, full").legends[0].get_patches()
    assert len({key.get_hatch() for key in keys}) == len(keys) == len(PHASES) + 1
    fills = numpy.array([to_rgb(key.get_facecolor()) for key in keys])
    mixed = ((fills + 0.055) / 1.055) ** 2.4 @ numpy.transpose(matrix)
    seen = mixed.clip(0) ** (1 / 2.4)
    assert all(math.dist(a, b) > 0.12 for a, b in itertools.combinations(seen, 2))


def write_all(x):
    page = figures.html_table([x], [[x]], title=x, lead=x, note=x, details=[x])
    page += figures.html_pictures([(x, b"")], caption=x)
    return page + figures.html_progress(x, 0.5) + figures.html_page(x, text=x)


@given(text=st.text(min_size=1))
def test_no_text_of_a_readers_becomes_markup(text):
    page, plain = write_all(text).replace("<wbr>", ""), write_all("word")
    assert page.count(html.escape(text)) >= plain.count("word")
    assert all(page.count(mark) == plain.count(mark) for mark in "<>\"'")


def test_a_long_name_may_break_so_that_no_column_is_cut():
    rows = [["attention=scaled_dot_product", "770"], ["attention=short", "770"]]
    page = figures.html_table(["", "rate"], rows)
    assert "attention=<wbr>scaled_<wbr>dot_<wbr>product<" in page
    assert "attention=short<" in page


def test_tables_can_be_read_in_a_dark_theme_and_numbers_stand_below_each_other():
    rows = [["0", 770, "baseline"], ["2", None, "faster"]]
    page = figures.html_table(["workers", "rate", "verdict"], rows)
    cells = re.findall(r"<t[dh] [^>]*>", page)
    assert len(cells) == 9 and "<style" not in page and "class=" not in page
    assert all("background:#" in cell and "color:#" in cell for cell in cells)
    sides = [re.search(r"text-align:(\w+)", cell)[1] for cell in cells]
    assert sides == ["left", "right", "left"] * 3 and ">–</td>" in page


def test_numbers_of_an_axis_that_would_overlap_are_written_shorter():
    sizes = [1, 100, 10_000, 100_000, 1_000_000, 10_000_000]
    line = {"here": (sizes, [1.0] * 6, None, None, "measured")}
    look = {"title": "T", "xlabel": "numbers", "ylabel": "s", "logx": True}
    ticks = figures.draw_lines(line, **look).axes[0].get_xticklabels()
    texts = [tick.get_text() for tick in ticks]
    assert texts == ["1", "100", "10 k", "100 k", "1 M", "10 M"]
