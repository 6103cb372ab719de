"""Figures: what is drawn, written and escaped; never pixels."""

import html
import io
import itertools
import json
import math
import re
import subprocess
import sys
import threading

import nbformat
import pytest
from matplotlib.collections import PathCollection
from matplotlib.colors import same_color, to_rgb
from matplotlib.container import ErrorbarContainer
from matplotlib.markers import MarkerStyle
from matplotlib.text import Text
from nbclient import NotebookClient
from PIL import Image

from kit import figures

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
    assert figures.format_rate(value, "items/s") == "unknown"
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
    assert same_color(first.get_facecolor(), figures.COLOURS["baseline"])
    assert same_color(second.get_facecolor(), figures.COLOURS["measured"])
    assert first.get_hatch()
    assert second.get_hatch() is None


def test_an_unknown_value_is_written_and_has_no_bar():
    figure = draw_workers(values=[770, None, NAN], lows=None, highs=None)
    assert len(axes_of(figure).patches) == 1
    assert texts_of(figure) == ["770", "unknown", "unknown"]
    assert "1: unknown" in figure.alt


def test_values_are_written_by_the_given_function():
    figure = draw_workers(values=[1, 1.5, 2.04], format=figures.format_ratio)
    assert texts_of(figure) == ["1.00 ×", "1.50 ×", "2.04 ×"]


def test_labels_stay_on_the_card_beside_bars_of_either_sign():
    figure = draw_workers(values=[-3, 0, 5], lows=[-4, -1, 4], highs=[-2, 1, 6])
    figures.to_png(figure)
    card = figure.bbox
    for text in axes_of(figure).texts:
        box = text.get_window_extent()
        assert card.x0 <= box.x0 and box.x1 <= card.x1


def test_a_card_grows_with_the_number_of_bars():
    few = draw_workers(labels=["a"] * 3).get_figheight()
    many = figures.draw_bars(["a"] * 12, [1] * 12, title="t", unit="u").get_figheight()
    assert many - few == pytest.approx(9 * 0.46)


def test_lists_of_different_lengths_are_an_error():
    with pytest.raises(ValueError, match="shorter"):
        draw_workers(lows=[1])


@pytest.mark.parametrize("kind", ["bars", "lines"])
def test_one_absurd_interval_is_cut_with_a_mark_and_decides_no_axis(kind):
    values, lows, highs = [2.0, 1.0, 1.5], [1.8, 1e-14, 1.4], [2.2, 5e21, 1.6]
    if kind == "bars":
        figure = figures.draw_bars("abc", values, lows, highs, title="t", unit="1/s")
        reach, arrow = axes_of(figure).get_xlim()[1], ">"
    else:
        series = {"here": ([1, 2, 3], values, lows, highs, "measured")}
        labels = {"title": "t", "xlabel": "x", "ylabel": "1/s"}
        figure = figures.draw_lines(series, **labels)
        reach, arrow = axes_of(figure).get_ylim()[1], "^"
    assert 6 <= reach < 10, "values decide"
    marks = [c for c in axes_of(figure).collections if isinstance(c, PathCollection)]
    (mark,) = marks
    assert mark.get_paths()[0].vertices.tolist() == list_vertices(arrow)
    assert "5.00e+21" in figure.alt, "who cannot see it is told all"
    figures.to_png(figure)


def list_vertices(marker):
    shape = MarkerStyle(marker)
    return shape.get_path().transformed(shape.get_transform()).vertices.tolist()


@pytest.mark.parametrize("times", [4, 6, 40])
def test_a_long_title_has_two_lines_inside_the_card_and_is_taken_literally(times):
    title = "This costs $5 and that $6, " * times
    figure = draw_workers(title=title)
    shown = axes_of(figure).get_title(loc="left")
    assert title.startswith(shown.replace("\n", " ").removesuffix("…"))
    assert shown.count("\n") == 1
    assert title.strip() in figure.alt, "who cannot see it is told all"
    figures.to_png(figure)
    (heading,) = [t for t in figure.findobj(Text) if t.get_text() == shown]
    assert not heading.get_parse_math()
    assert heading.get_window_extent().x1 <= figure.bbox.x1
    assert heading.get_window_extent().y1 <= figure.bbox.y1


def test_a_label_that_is_too_long_is_cut_and_the_whole_stands_in_the_alt_text():
    label = "a_very_long_name_of_an_experiment" * 4
    figure = draw_workers(labels=[label, "1", "2"])
    shown = axes_of(figure).get_yticklabels()[0].get_text()
    assert shown.endswith("…") and label.startswith(shown[:-1])
    assert label in figure.alt


def test_no_bars_yet_is_a_card_too():
    figure = figures.draw_bars([], [], title="Nothing yet", unit="items/s")
    assert figures.to_png(figure)
    assert figure.alt == "Bars, items/s. Nothing yet."


# ---------------------------------------------------------------- lines


def draw_three(**changes):
    series = {
        "here": ([1, 2, 4], [10, 18, 20], [9, 17, None], [11, 19, None], "measured"),
        "model": ([1, 2, 4], [10, 20, 20], None, None, "predicted"),
        "elsewhere": ([1, 2], [100, 190], None, None, "recorded"),
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
    assert elsewhere.get_xydata().tolist() == [[1, 100], [2, 190]]
    assert intervals_of(figure, "y") == [(1, 9, 11), (2, 17, 19)]


def test_styles_differ_in_more_than_colour():
    here, model, elsewhere = lines_of(draw_three())
    assert here.get_marker() == "o" and here.get_linestyle() == "-"
    assert model.get_marker() == "None" and model.get_linestyle() == "--"
    assert same_color(elsewhere.get_markerfacecolor(), figures.COLOURS["card"])
    assert not same_color(here.get_color(), elsewhere.get_color())


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
    figures.to_png(figure)
    # Of the words alone: an annotation's own extent includes its line.
    boxes = [Text.get_window_extent(text) for text in axes_of(figure).texts]
    tops = sorted((box.y0, box.y1) for box in boxes)
    for (_, top), (bottom, _) in itertools.pairwise(tops):
        assert top <= bottom + 1
    assert tops[0][0] > axes_of(figure).bbox.y0 - 15  # pixels: half a line
    assert tops[-1][1] <= figure.bbox.y1


def test_the_vertical_axis_begins_at_zero():
    assert axes_of(draw_three()).get_ylim()[0] == 0


def test_an_axis_of_bytes_is_written_in_units_of_them():
    series = {"measured": ([1, 2], [0, 150e6], None, None, "measured")}
    figure = figures.draw_lines(
        series, title="T", xlabel="x", ylabel="bytes of peak memory"
    )
    figure.canvas.draw()
    told = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert "100 MB" in told
    assert not any("e+" in text or "," in text for text in told)


def test_ticks_are_the_measured_positions():
    figure = draw_three(logx=True)
    assert axes_of(figure).get_xticks().tolist() == [1, 2, 4]
    figures.to_png(figure)
    shown = [t.get_text() for t in axes_of(figure).get_xticklabels()]
    assert shown == ["1", "2", "4"]


def test_a_gap_is_a_gap_and_a_line_without_values_keeps_its_name():
    series = {
        "gap": ([1, 2, 3], [1, None, 3], None, None, "measured"),
        "lost": ([1], [NAN], None, None, "recorded"),
    }
    figure = figures.draw_lines(series, title="t", xlabel="x", ylabel="y")
    assert math.isnan(lines_of(figure)[0].get_ydata()[1])
    assert texts_of(figure) == ["gap", "lost"]
    assert "lost: 1: unknown" in figure.alt


@pytest.mark.parametrize(("style", "x"), [("guessed", 1), ("measured", 0)])
def test_a_wrong_style_and_an_x_without_logarithm_name_the_series(style, x):
    series = {"mine": ([x], [1], None, None, style)}
    with pytest.raises(ValueError, match="mine"):
        figures.draw_lines(series, title="t", xlabel="x", ylabel="y", logx=True)


# ---------------------------------------------------------------- steps


def test_steps_are_milliseconds_counted_from_one_and_slow_ones_are_marked():
    times = [0.5, *[0.01] * 20, 0.05, *[0.01] * 20]
    figure = figures.draw_steps(times, title="t", regions=[(1, 1, "warm-up")])
    steps, slow = axes_of(figure).lines[:2]
    assert steps.get_xdata()[0] == 1
    assert steps.get_ydata()[:2].tolist() == [500, 10]
    assert slow.get_xydata().tolist() == [[1, 500], [22, 50]]
    assert slow.get_marker() != steps.get_marker()
    assert texts_of(figure) == ["warm-up", "median\n10.0 ms"]
    assert "steps 1 to 1: warm-up" in figure.alt
    assert "step 22 took 50.0 ms" in figure.alt


def test_one_enormous_step_makes_the_axis_logarithmic_and_says_so():
    figure = figures.draw_steps([40, *[0.01] * 20], title="t")
    assert axes_of(figure).get_yscale() == "log"
    assert "logarithmic" in axes_of(figure).get_ylabel()
    even = figures.draw_steps([0.01, 0.02, None], title="t")
    assert axes_of(even).get_yscale() == "linear"


def test_no_steps_yet_is_a_card_too():
    assert figures.to_png(figures.draw_steps([], title="Nothing yet"))


def test_what_is_counted_may_be_something_else():
    figure = figures.draw_steps([0.05, 0.01, 0.01], title="t", xlabel="block")
    assert axes_of(figure).get_xlabel() == "block"
    assert "3 blocks" in figure.alt and "block 1 took 50.0 ms" in figure.alt
    assert "step" not in figure.alt.replace("steps", "")


# ---------------------------------------------------------------- showing


def luminance(colour):
    parts = (x / 12.92 if x <= 0.04 else ((x + 0.055) / 1.055) ** 2.4 for x in colour)
    return sum(k * x for k, x in zip((0.2126, 0.7152, 0.0722), parts, strict=True))


def test_every_colour_that_writes_text_is_readable_on_a_card():
    card = luminance(to_rgb(figures.COLOURS["card"]))
    roles = ("ink", "muted", "predicted", "recorded", "slow")
    for colour in [*figures.SERIES_COLOURS, *(figures.COLOURS[r] for r in roles)]:
        assert (card + 0.05) / (luminance(to_rgb(colour)) + 0.05) >= 4.5, colour


def test_a_style_sheet_of_the_readers_changes_no_card():
    import matplotlib as mpl

    plain = figures.to_png(draw_workers())
    dark = {"text.color": "white", "axes.facecolor": "black", "figure.facecolor": "k"}
    dark |= {"font.family": "serif", "xtick.color": "white", "axes.labelcolor": "white"}
    with mpl.rc_context(dark):
        assert figures.to_png(draw_workers()) == plain


def test_pictures_are_solid_light_and_small():
    data = figures.to_png(draw_workers())
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
    assert picture.figure is figure
    assert picture.axes == figure.axes
    assert repr(picture) == "an empty pair of axes"


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
    expected = figures.to_png(draw_three())
    drawn = []

    def draw():
        drawn.extend(figures.to_png(draw_three()) for _ in range(3))

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
        figures.to_png(figures.draw_steps([0.1], title="t"))
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
        for cell in re.findall(r"<t[dh] [^>]*>", page):
            assert "background:#" in cell and "color:#" in cell


def test_a_table_aligns_numbers_to_the_right():
    rows = [["0", 770, "baseline"], ["2", None, "faster"]]
    page = figures.html_table(["workers", "rate", "verdict"], rows)
    lines = re.findall(r"<tr>(.*?)</tr>", page)
    sides = [re.findall(r"text-align:(\w+);(?!v)", line) for line in lines]
    assert sides == [["left", "right", "left"]] * 3
    assert ">–</td>" in page


@pytest.mark.parametrize(("fraction", "width"), [(0, 0), (0.254, 25), (1, 100)])
def test_a_progress_bar_is_as_wide_as_what_is_done(fraction, width):
    page = figures.html_progress("measuring", fraction)
    assert f"width:{width}%" in page
    assert "role='status'" in page and "measuring" in page


@pytest.mark.parametrize("write", [figures.html_table, figures.text_table])
@pytest.mark.parametrize("row", [["1"], ["1", "2", "3"]])
def test_a_row_of_another_length_is_an_error(write, row):
    with pytest.raises(ValueError, match=f"{len(row)} cells under 2 headers"):
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
    (total,) = (line for line in axes.lines if line.get_label() == "total")
    assert list(total.get_ydata()) == [120, 220, 320, 240, 160, 120]


def test_bands_differ_by_hatch_and_carry_their_names():
    figure = draw_step_memory()
    bands = axes_of(figure).collections
    assert len({band.get_hatch() for band in bands}) == len(bands) == 4
    texts = texts_of(figure)
    assert {"parameters", "optimizer state", "gradients", "activations"} <= set(texts)
    assert {"forward", "backward", "optimizer", "peak 320", "predicted 325"} <= {
        text.replace("\n", " ") for text in texts
    }


def test_a_stack_is_told_in_words():
    alt = draw_step_memory(format=lambda value: f"{value:g} MB").alt
    assert "At most 320 MB, at 2: parameters 40 MB; optimizer state 80 MB" in alt
    assert "predicted: 325 MB" in alt
    assert "From 2 to 4: backward" in alt
    assert "activations: 0 MB first, 200 MB at 2, 0 MB last" in alt


@pytest.mark.parametrize("peak", [0, 3, 5])
@pytest.mark.parametrize("thin", [0, 1e-3, 1])
def test_every_text_of_a_stack_is_on_the_card_and_none_on_another(peak, thin):
    amounts = [40] * 6
    amounts[peak] = 300
    values = {"a long name of a band": amounts, "thin": [thin] * 6, "flat": [60] * 6}
    figure = draw_step_memory(values=values, marks={"predicted total": 410})
    figures.to_png(figure)
    boxes = [t.get_window_extent() for t in axes_of(figure).texts]
    card = figure.bbox
    for box in boxes:
        assert card.x0 <= box.x0 < box.x1 <= card.x1
        assert card.y0 <= box.y0 < box.y1 <= card.y1
    for one, other in itertools.combinations(boxes, 2):
        assert not one.overlaps(other)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"positions": range(5)}, "parameters: 6 amounts at 5 positions"),
        ({"positions": [0, 1, 1, 2, 3, 4]}, "beyond the one before"),
        ({"positions": [0], "values": {"a": [1]}}, "two or more"),
        ({"values": {}}, "0 bands"),
        ({"values": {str(n): [1] * 6 for n in range(7)}}, "7 bands"),
        ({"values": {"a": [1, 2, 3, 4, 5, NAN]}}, "a: an amount is negative"),
        ({"values": {"a": [1, 2, 3, 4, 5, -1]}}, "a: an amount is negative"),
    ],
)
def test_what_no_stack_can_show_is_an_error(bad, said):
    with pytest.raises(ValueError, match=said):
        draw_step_memory(**bad)


def test_columns_of_a_table_have_looks_of_their_own():
    page = figures.html_table(["a", "b"], [["x", "01"]], looks={"b": ("red", "blue")})
    cells = re.findall(r"<td style=\"([^\"]*)\">([^<]*)", page)
    assert ["background:red;color:blue" in style for style, _ in cells] == [False, True]
    assert "background:red" not in page.partition("<tbody>")[0]
