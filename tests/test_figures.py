"""Figures: what is drawn, written and escaped; never pixels."""

import html
import io
import json
import math
import re
import subprocess
import sys
import threading

import nbformat
import pytest
from matplotlib.colors import same_color, to_rgb
from matplotlib.container import ErrorbarContainer
from matplotlib.text import Text
from nbclient import NotebookClient
from pictures import assert_that_texts_have_room, luminance
from PIL import Image

from kit import figures
from kit.figures.html import to_png
from kit.figures.style import COLOURS, LINES

NAN = math.nan


def axes_of(figure):
    (axes,) = figure.axes
    return axes


def lines_of(figure):
    return [x for x in axes_of(figure).lines if not x.get_label().startswith("_")]


def texts_of(figure):
    return [text.get_text() for text in axes_of(figure).texts]


def intervals_of(figure, along):
    """Return (position, low, high) of each error bar."""
    found = []
    for container in axes_of(figure).containers:
        if isinstance(container, ErrorbarContainer):
            (segment,) = container.lines[2][0].get_segments()
            (x0, y0), (x1, y1) = segment
            found.append((y0, x0, x1) if along == "x" else (x0, y0, y1))
    return found


def draw_workers(**changes):
    given = {
        "labels": ["0", "1", "2"],
        "values": [770, 1120, 1578],
        "lows": [755, 1090, 1540],
        "highs": [785, 1150, 1610],
        "title": "Two workers are 2.05 × as fast as none",
        "unit": "images/s",
        "baseline": 0,
    } | changes
    return figures.draw_bars(**given)


# ---------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (figures.format_number, 0, "0"),
        (figures.format_number, 9.996, "10.0"),
        (figures.format_number, 999.6, "1,000"),
        (figures.format_number, -0.25, "−0.250"),
        (figures.format_number, 0.00123, "0.00123"),
        (figures.format_number, 1.5e-7, "1.50e−07"),
        (figures.format_number, 1_234_567, "1,234,567"),
        (figures.format_ratio, 1.923, "1.92 ×"),
        (figures.format_ratio, 12.34, "12.3 ×"),
        (figures.format_seconds, 0, "0 s"),
        (figures.format_seconds, 2e-9, "2.00 ns"),
        (figures.format_seconds, 4.56e-5, "45.6 µs"),
        (figures.format_seconds, 0.9999, "1.00 s"),
        (figures.format_seconds, 119.4, "119 s"),
        (figures.format_seconds, 119.6, "2 min 0 s"),
        (figures.format_seconds, -0.002, "−2.00 ms"),
        (figures.format_seconds, 3599.9, "1 h 0 min"),
        (figures.format_bytes, 0, "0 B"),
        (figures.format_bytes, 999, "999 B"),
        (figures.format_bytes, 999_999, "1 MB"),
        (figures.format_bytes, 141e9, "141 GB"),
        (figures.format_bytes, 25_276_510_208, "25.3 GB"),
        (figures.format_bytes, -1500, "−1.5 kB"),
        (figures.format_bytes, 5e18, "5,000 PB"),
    ],
)
def test_a_number_is_written_with_three_digits_and_its_unit(write, value, text):
    assert write(value) == text


@pytest.mark.parametrize("value", [None, NAN, math.inf])
def test_what_is_not_known_is_never_written_as_a_number(value):
    assert figures.format_number(value) == "unknown"
    assert figures.format_ratio(value) == "unknown"
    assert figures.format_seconds(value) == "unknown"
    assert figures.format_bytes(value) == "unknown"


# ---------------------------------------------------------------- bars


def test_bars_have_the_widths_whiskers_and_labels_of_their_values():
    figure = draw_workers()
    assert [bar.get_width() for bar in axes_of(figure).patches] == [770, 1120, 1578]
    assert intervals_of(figure, "x") == [
        (0, 755, 785),
        (1, 1090, 1150),
        (2, 1540, 1610),
    ]
    assert texts_of(figure) == ["770", "1,120", "1,578"]
    names = [label.get_text() for label in axes_of(figure).get_yticklabels()]
    assert names == ["0", "1", "2"]
    assert axes_of(figure).get_xlabel() == "images/s"


def test_the_first_bar_is_at_the_top_and_bars_begin_at_zero():
    low, high = axes_of(draw_workers()).get_ylim()
    assert low > high
    assert axes_of(draw_workers()).get_xlim()[0] == 0


def test_the_baseline_differs_in_colour_and_in_hatch():
    first, second, _ = axes_of(draw_workers()).patches
    assert same_color(first.get_facecolor(), COLOURS["baseline"])
    assert same_color(second.get_facecolor(), COLOURS["measured"])
    assert first.get_hatch()
    assert second.get_hatch() is None


def test_an_unknown_value_is_written_and_has_no_bar():
    figure = draw_workers(values=[770, None, NAN], lows=None, highs=None)
    assert len(axes_of(figure).patches) == 1
    assert texts_of(figure) == ["770", "unknown", "unknown"]
    assert "1: unknown" in figure.alt


BARS = {
    "either sign": {"values": [-3, 0, 5], "lows": [-4, -1, 4], "highs": [-2, 1, 6]},
    "wide": {"labels": ["a" * 90, "WWW " * 9, "x-" * 40], "title": "WIDE MWM " * 20},
    "absurd": {"lows": [1e-14, -9e9, 3], "highs": [5e21, 1600, 9e9]},
    "predicted": {"predicted": [5, 3000, None], "recorded": [2], "width": 5.6},
    "billions": {
        "values": [4.5e9, 5e6, 5e9],
        "lows": None,
        "highs": None,
        "width": 5.6,
    },
    "small": {"values": [1e-9, 0.51, 15], "lows": None, "highs": None, "width": 5.6},
}


@pytest.mark.parametrize("given", BARS.values(), ids=BARS)
def test_no_words_of_bars_meet_or_leave_the_card(given):
    assert_that_texts_have_room(draw_workers(**given))


def test_predicted_values_are_dashed_frames_in_the_colour_of_their_bars():
    figure = draw_workers(predicted=[800, None, 1500])
    frames = [bar for bar in axes_of(figure).patches if not bar.get_fill()]
    assert [bar.get_width() for bar in frames] == [800, 1500]
    assert all(bar.get_linestyle() != "-" for bar in frames)
    colours = COLOURS["baseline"], COLOURS["measured"]
    for frame, colour in zip(frames, colours, strict=True):
        assert same_color(frame.get_edgecolor(), colour)
    ends = [text.xy[0] for text in axes_of(figure).texts]
    assert ends == [800, 1150, 1610], "no text crosses a frame"
    assert "Predicted: 0: 800; 2: 1,500." in figure.alt
    assert "(dashed: predicted)" in axes_of(figure).get_xlabel()


def test_a_card_grows_with_the_number_of_bars():
    few = draw_workers(labels=["a"] * 3).get_figheight()
    many = figures.draw_bars(["a"] * 12, [1] * 12, title="t", unit="u").get_figheight()
    assert many - few == pytest.approx(9 * 0.46)


def test_lists_of_different_lengths_are_an_error():
    with pytest.raises(ValueError, match="shorter"):
        draw_workers(lows=[1])


@pytest.mark.parametrize("kind", ["bars", "lines"])
def test_one_absurd_interval_is_cut_and_decides_no_axis(kind):
    values, lows, highs = [2.0, 1.0, 1.5], [1.8, 1e-14, 1.4], [2.2, 5e21, 1.6]
    if kind == "bars":
        figure = figures.draw_bars("abc", values, lows, highs, title="t", unit="1/s")
        reach = axes_of(figure).get_xlim()[1]
    else:
        series = {"here": ([1, 2, 3], values, lows, highs, "measured")}
        labels = {"title": "t", "xlabel": "x", "ylabel": "1/s"}
        figure = figures.draw_lines(series, **labels)
        reach = axes_of(figure).get_ylim()[1]
    assert 6 <= reach < 10, "values decide"
    assert max(end for _, _, end in intervals_of(figure, "xy"[kind == "lines"])) > 1e20
    assert "5.00e+21" in figure.alt, "who cannot see it is told all"
    assert to_png(figure)


@pytest.mark.parametrize("times", [4, 6, 40])
def test_a_long_title_has_two_lines_inside_the_card_and_is_taken_literally(times):
    title = "This costs $5 and that $6, " * times
    figure = draw_workers(title=title)
    shown = figure.get_suptitle()
    assert title.startswith(shown.replace("\n", " ").removesuffix("…"))
    assert shown.count("\n") == 1
    assert title.strip() in figure.alt, "who cannot see it is told all"
    assert_that_texts_have_room(figure)
    (heading,) = [t for t in figure.findobj(Text) if t.get_text() == shown]
    assert not heading.get_parse_math()


def test_a_label_that_is_too_long_is_cut_and_the_whole_stands_in_the_alt_text():
    label = "a_very_long_name_of_an_experiment" * 4
    figure = draw_workers(labels=[label, "1", "2"])
    shown = axes_of(figure).get_yticklabels()[0].get_text()
    assert shown.endswith("…") and label.startswith(shown[:-1].strip())
    assert label in figure.alt


def test_no_bars_yet_is_a_card_too():
    figure = figures.draw_bars([], [], title="Nothing yet", unit="items/s")
    assert to_png(figure)
    assert figure.alt == "Bars, items/s. Nothing yet."


# ---------------------------------------------------------------- lines


def draw_three(**changes):
    series = {
        "here": ([1, 2, 4], [10, 18, 20], [9, 17, None], [11, 19, None], "measured"),
        "model": ([1, 2, 4], [10, 20, 20], None, None, "predicted"),
        "elsewhere": ([1, 2], [40, 90], None, None, "recorded"),
    }
    given = {"title": "It grows", "xlabel": "workers", "ylabel": "items/s"} | changes
    return figures.draw_lines(series, **given)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("logx", [False, True])
def test_lines_of_a_single_place_have_it_in_the_middle(logx):
    series = {"a": ([64], [5.0], [4.0], [6.0], "measured")}
    labels = {"title": "t", "xlabel": "x", "ylabel": "y"}
    axes = figures.draw_lines(series, logx=logx, **labels).axes[0]
    low, high = axes.get_xlim()
    assert 64 in (pytest.approx((low + high) / 2), pytest.approx((low * high) ** 0.5))
    assert axes.get_xticks().tolist() == [64] and low < 63.5 and high > 64.5


def test_lines_pass_through_the_given_points_with_their_intervals():
    figure = draw_three()
    here, model, elsewhere = lines_of(figure)
    assert here.get_xydata().tolist() == [[1, 10], [2, 18], [4, 20]]
    assert model.get_xydata().tolist() == [[1, 10], [2, 20], [4, 20]]
    assert elsewhere.get_xydata().tolist() == [[1, 40], [2, 90]]
    assert intervals_of(figure, "y") == [(1, 9, 11), (2, 17, 19)]


def test_styles_differ_in_more_than_colour():
    here, model, elsewhere = lines_of(draw_three())
    assert here.get_marker() == "o" and here.get_linestyle() == "-"
    assert model.get_linestyle() == "--" and not model.get_marker()
    assert same_color(elsewhere.get_markerfacecolor(), COLOURS["card"])
    assert not same_color(here.get_color(), elsewhere.get_color())


@pytest.mark.parametrize(
    ("measured", "predicted"),
    [
        (["measured"], ["predicted"]),
        (["workers=2", "workers=4"], ["predicted, workers=2", "predicted, workers=4"]),
    ],
)
@pytest.mark.parametrize("turn", [1, -1])
def test_a_prediction_has_the_colour_of_what_it_predicts(measured, predicted, turn):
    kinds = {"measured": measured, "predicted": predicted}
    series = {n: ([1, 2], [1, 2], None, None, k) for k, x in kinds.items() for n in x}
    series = dict([*series.items()][::turn])
    figure = figures.draw_lines(series, title="t", xlabel="x", ylabel="y")
    colours = {line.get_label(): line.get_color() for line in lines_of(figure)}
    assert len(set(colours.values())) == len(measured)
    for one, other in zip(measured, predicted, strict=True):
        assert colours[one] == colours[other]


def test_two_measured_lines_have_two_markers():
    series = {name: ([1, 2], [1, 2], None, None, "measured") for name in "ab"}
    figure = figures.draw_lines(series, title="t", xlabel="x", ylabel="y")
    first, second = lines_of(figure)
    assert first.get_marker() != second.get_marker()
    assert not same_color(first.get_color(), second.get_color())


@pytest.mark.parametrize("height", [0, 5, 9])
def test_names_stand_at_the_ends_and_do_not_overlap(height):
    series = {
        f"line {i}": ([1, 2], [5, height + i / 100], None, None, "measured")
        for i in range(6)
    }
    series["highest"] = ([1, 2], [5, 9.1], None, None, "predicted")
    figure = figures.draw_lines(series, title="t", xlabel="x", ylabel="y")
    assert texts_of(figure) == list(series)
    assert axes_of(figure).get_legend() is None
    assert_that_texts_have_room(figure)


def test_the_vertical_axis_begins_at_zero_or_is_logarithmic_and_says_so():
    axes = axes_of(draw_three())
    assert axes.get_ylim()[0] == 0 and axes.get_ylabel() == "items/s"
    wide = ([1, 2, 3], [0.5, 7, 100], [-1, 6, 90], [0.6, 8, 9e9], "measured")
    labels = {"title": "t", "xlabel": "x", "ylabel": "loss"}
    axes = axes_of(figures.draw_lines({"here": wide}, **labels))
    assert axes.get_yscale() == "log" and axes.get_ylabel() == "loss (logarithmic)"
    low, high = axes.get_ylim()
    assert 0.05 < low < 0.5 and 100 < high < 1000, "values decide"


def test_an_axis_of_bytes_is_written_in_units_of_them():
    series = {"measured": ([1, 2], [0, 150e6], None, None, "measured")}
    figure = figures.draw_lines(
        series, title="T", xlabel="x", ylabel="bytes of peak memory"
    )
    figure.canvas.draw()
    told = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert "100 MB" in told
    assert not any("e+" in text or "," in text for text in told)


CHOICES = {
    "few": [1, 2, 4],
    "many": [1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128, 256],
    "zero": [0, 1, 2, 4, 8, 16, 64],
    "large": [2**12, 2**16, 2**20, 2**24],
}


@pytest.mark.parametrize("logx", [False, True])
@pytest.mark.parametrize("xs", CHOICES.values(), ids=CHOICES)
def test_every_choice_has_its_tick_where_there_is_room(xs, logx):
    labels = {"title": "t", "xlabel": "x", "ylabel": "y", "logx": logx}
    series = {"a": (xs, [5] * len(xs), None, None, "measured")}
    figure = figures.draw_lines(series, **labels)
    assert_that_texts_have_room(figure)
    axis = axes_of(figure).xaxis
    assert axis.get_minorticklocs().size == 0
    if logx or xs == CHOICES["few"]:
        assert axis.get_majorticklocs().tolist() == xs
        shown = [t.get_text() for t in axes_of(figure).get_xticklabels()]
        assert shown == [f"{x:,}" for x in xs]


def test_a_gap_is_a_gap_and_a_line_without_values_keeps_its_name():
    series = {
        "gap": ([1, 2, 3], [1, None, 3], None, None, "measured"),
        "lost": ([1], [NAN], None, None, "recorded"),
    }
    figure = figures.draw_lines(series, title="t", xlabel="x", ylabel="y")
    assert math.isnan(lines_of(figure)[0].get_ydata()[1])
    assert texts_of(figure) == ["gap", "lost"]
    assert "lost: 1: unknown" in figure.alt


def test_a_wrong_kind_names_the_series():
    series = {"mine": ([1], [1], None, None, "guessed")}
    with pytest.raises(ValueError, match="mine"):
        figures.draw_lines(series, title="t", xlabel="x", ylabel="y")


def test_of_many_points_the_alt_text_tells_those_that_matter():
    xs = range(256, 8193, 64)
    ys = [5 + math.sin(x) for x in xs[:-2]] + [9, 5]
    series = {"a": (xs, ys, None, None, "predicted")}
    alt = figures.draw_lines(series, title="t", xlabel="x", ylabel="y").alt
    assert alt.startswith("y over x. t. a: 256: 4.00; ")
    assert alt.endswith("8,128: 9.00; 8,192: 5.00.") and len(alt) < 100


# ---------------------------------------------------------------- steps


def test_steps_are_milliseconds_counted_from_one_beside_their_median():
    times = [0.5, *[0.01] * 20, 0.05, *[0.01] * 20, None]
    figure = figures.draw_steps(times, title="t")
    steps, median = axes_of(figure).lines
    assert steps.get_xdata().tolist() == list(range(1, 44))
    assert steps.get_ydata()[:2].tolist() == [500, 10] and math.isnan(
        steps.get_ydata()[-1]
    )
    assert median.get_ydata().tolist() == [10, 10] and median.get_linestyle() == "--"
    assert texts_of(figure) == ["measured", "median 10.0 ms"]
    assert axes_of(figure).get_xlabel() == "step"
    assert "logarithmic" in axes_of(figure).get_ylabel()
    assert "median 10.0 ms" in figure.alt and "1: 500; 2: 10.0" in figure.alt
    even = figures.draw_steps([0.01, 0.02, None], title="t")
    assert axes_of(even).get_yscale() == "linear"


@pytest.mark.parametrize("times", [[], [None], [0.0, 0.0]])
def test_no_steps_yet_is_a_card_too(times):
    assert_that_texts_have_room(figures.draw_steps(times, title="Nothing yet"))


# ---------------------------------------------------------------- showing


def test_every_colour_that_writes_text_is_readable_on_a_card():
    card = luminance(to_rgb(COLOURS["card"]))
    roles = ("ink", "muted", "predicted", "recorded")
    for colour in [*(c for c, _ in LINES), *(COLOURS[r] for r in roles)]:
        assert (card + 0.05) / (luminance(to_rgb(colour)) + 0.05) >= 4.5, colour


def test_a_style_sheet_of_the_readers_changes_no_card():
    import matplotlib as mpl

    plain = to_png(draw_workers())
    dark = {"text.color": "white", "axes.facecolor": "black", "figure.facecolor": "k"}
    dark |= {"font.family": "serif", "xtick.color": "white", "axes.labelcolor": "white"}
    with mpl.rc_context(dark):
        assert to_png(draw_workers()) == plain


def test_pictures_are_solid_light_and_small():
    data = to_png(draw_workers())
    picture = Image.open(io.BytesIO(data)).convert("RGBA")
    assert picture.size[0] == 1520
    assert picture.getpixel((0, 0)) == (0xFD, 0xFD, 0xFC, 255)
    assert picture.getextrema()[3] == (255, 255)
    assert len(data) < 60_000


def test_figures_and_axes_show_themselves_with_alt_text():
    figure = draw_workers(title='1 < 2 & "so"')
    for shown in (figure, axes_of(figure), figures.show(axes_of(figure))):
        bundle = shown._repr_mimebundle_(include=None, exclude=None)
        assert set(bundle) == {"text/html", "text/plain"}
        assert bundle["text/plain"] == figure.alt
        (alt,) = re.findall(r'<img alt="([^"]*)"', bundle["text/html"])
        assert "<" not in alt
        assert html.unescape(alt) == figure.alt


def test_another_figure_needs_its_alt_text():
    from matplotlib.figure import Figure

    figure = Figure()
    with pytest.raises(ValueError, match="alt text"):
        figures.show(figure)
    picture = figures.show(figure.add_subplot(), "an empty pair of axes")
    assert picture is figure
    bundle = figure.axes[0]._repr_mimebundle_()
    assert picture.alt == bundle["text/plain"] == "an empty pair of axes"


def test_a_notebook_stores_a_static_image_with_alt_text():
    draw = "figure = draw_bars(['a'], [1], title='One bar', unit='items/s')"
    cells = [f"from kit.figures import draw_bars\n{draw}\nfigure", "figure.axes[0]"]
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell) for cell in cells]
    )
    NotebookClient(notebook, kernel_name="python3", timeout=60).execute()
    for cell in notebook.cells:
        (output,) = cell.outputs
        assert set(output.data) == {"text/html", "text/plain"}
        assert 'alt="Bars, items/s. One bar. a: 1.00."' in output.data["text/html"]
    assert "widgets" not in json.dumps(notebook.metadata)


def test_threads_may_draw_at_the_same_time():
    expected = to_png(draw_three())
    drawn = []

    def draw():
        drawn.extend(to_png(draw_three()) for _ in range(3))

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert drawn == [expected] * 12


def test_nothing_heavy_is_imported_and_pyplot_never():
    program = """if True:
        import sys
        from kit import figures
        heavy = {"matplotlib", "pandas", "torch", "PIL"} & set(sys.modules)
        assert not heavy, heavy
        figures.show(figures.draw_steps([0.1], title="t"))._repr_mimebundle_()
        assert "matplotlib.pyplot" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", program], check=True)


# ---------------------------------------------------------------- tables


def test_everything_is_escaped():
    bad = "<img src=x onerror=alert(1)> & \"quoted\" 'so'"
    pages = [
        figures.html_card(bad, [(bad, bad, bad)], note=bad, footer=bad),
        figures.html_table([bad], [[bad]]),
        figures.html_sentence(bad, bad),
        figures.html_pictures([(bad, b"")], caption=bad),
        figures.html_progress(bad, 0.5),
    ]
    for page, times in zip(pages, (6, 2, 2, 3, 1), strict=True):
        page = page.replace('<img alt="', "")
        assert "<img" not in page
        assert page.count(html.escape(bad)) == times


def test_cards_are_styled_inline_and_each_cell_has_its_own_background():
    pages = [
        figures.html_card("t", [("a", 1, "b")], note="n", footer="f"),
        figures.html_table(["a", "b"], [["x", 1], ["y", 2]]),
    ]
    for page in pages:
        assert "<style" not in page and "class=" not in page
        assert page.count("<td") == page.count("</td>") > 1
        for cell in re.findall(r"<t[dh] [^>]*>", page):
            assert "background:#" in cell and "color:#" in cell


def test_a_table_aligns_numbers_to_the_right():
    rows = [["0", 770, "baseline"], ["2", None, "faster"]]
    page = figures.html_table(["workers", "rate", "verdict"], rows)
    lines = re.findall(r"<tr>(.*?)</tr>", page)
    sides = [re.findall(r"text-align:(\w+)", line) for line in lines]
    assert sides == [["left", "right", "left"]] * 3
    assert ">–</td>" in page


@pytest.mark.parametrize(("fraction", "value"), [(0, 0), (0.254, 0.25), (1, 1)])
def test_a_progress_bar_is_as_wide_as_what_is_done(fraction, value):
    page = figures.html_progress("measuring", fraction)
    assert f"value='{value:.2f}' max='1'" in page
    assert "role='status'" in page and "measuring" in page


@pytest.mark.parametrize("write", [figures.html_table, figures.text_table])
@pytest.mark.parametrize("row", [["1"], ["1", "2", "3"]])
def test_a_row_of_another_length_is_an_error(write, row):
    with pytest.raises(ValueError, match="zip"):
        write(["a", "b"], [row])


def test_a_text_table_lines_its_columns_up():
    rows = [["zero", "770", True], ["two", "1,578", False]]
    assert figures.text_table(["workers", "rate", "settled"], rows).splitlines() == [
        "workers   rate  settled",
        "zero       770  yes",
        "two      1,578  no",
    ]
    assert figures.text_table(["a", "b"], []) == "a  b"


# ---------------------------------------------------------------- stacks


def draw_step_memory(**changes):
    given = {
        "positions": range(6),
        "values": {
            "parameters": [40] * 6,
            "optimizer state": [80] * 6,
            "gradients": [0, 0, 0, 20, 40, 0],
            "activations": [0, 100, 200, 100, 0, 0],
        },
        "title": "A step keeps most at the end of its forward pass",
        "xlabel": "where in the step",
        "ylabel": "MB",
        "regions": [(0, 2, "forward"), (2, 4, "backward"), (4, 5, "optimizer")],
        "marks": {"predicted": 325},
    }
    given |= changes
    return figures.draw_stack(given.pop("positions"), given.pop("values"), **given)


def test_bands_lie_on_top_of_each_other():
    axes = axes_of(draw_step_memory())
    ends = []
    for band in axes.collections:
        (path,) = band.get_paths()
        corners = path.vertices
        at_peak = corners[corners[:, 0] == 2][:, 1]
        ends.append((at_peak.min(), at_peak.max()))
    assert ends == [(0, 40), (40, 120), (120, 120), (120, 320)]


def test_bands_differ_by_hatch_and_are_named_in_their_order():
    figure = draw_step_memory()
    bands = axes_of(figure).collections
    assert len({band.get_hatch() for band in bands}) == len(bands) == 4
    (legend,) = figure.legends
    named = [text.get_text() for text in legend.get_texts()]
    below = ["activations", "gradients", "optimizer state", "parameters"]
    assert named == ["predicted 325", "peak 320", *below]
    assert texts_of(figure) == ["forward", "backward", "optimizer"]


def test_a_stack_is_told_in_words():
    alt = draw_step_memory().alt
    assert "At most 320, at 2" in alt and "predicted: 325" in alt
    assert "From 2 to 4: backward" in alt
    assert "activations: 0: 0; 1: 100; 2: 200" in alt


@pytest.mark.parametrize("peak", [0, 3, 5])
@pytest.mark.parametrize("thin", [0, 1e-3, 1])
def test_every_text_of_a_stack_is_on_the_card_and_none_on_another(peak, thin):
    amounts = [40] * 6
    amounts[peak] = 300
    values = {"a long name of a band": amounts, "thin": [thin] * 6, "flat": [60] * 6}
    figure = draw_step_memory(values=values, marks={"predicted total": 410})
    assert_that_texts_have_room(figure)


def test_amounts_without_positions_and_seven_bands_are_an_error():
    with pytest.raises(ValueError, match="zip"):
        draw_step_memory(positions=range(5))
    with pytest.raises(ValueError, match="zip"):
        draw_step_memory(values={str(n): [1] * 6 for n in range(7)})
