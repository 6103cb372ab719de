"""A step's bar and a timeline: what is drawn, what is written, and that it fits."""

import itertools
import math
import random

import pytest
from matplotlib.colors import same_color, to_hex, to_rgb
from matplotlib.container import ErrorbarContainer
from matplotlib.patches import StepPatch
from pictures import assert_that_texts_have_room, luminance

from kit import figures
from kit.figures import Span
from kit.figures.html import to_png
from kit.figures.style import COLOURS, PHASE_LOOKS, PHASES

NAN = math.nan
LOOP = {
    "input": 0.61,
    "forward": 0.14,
    "backward": 0.19,
    "optimizer": 0.045,
    "python": 0.015,
}
SAVINGS = [
    ("cached batches", 0.61, 0.58, 0.64),
    ("no optimizer", 0.012, -0.004, 0.028),
    ("fused optimizer", -0.02, -0.05, 0.01),
]
TINY = [phase for phase in PHASES if phase != "input"]
SHARES = {
    "a loop that waits": LOOP,
    "one phase": {"sync": 1.0},
    "eight equal phases": dict.fromkeys(PHASES, 1 / 8),
    "seven tiny ones last": {"input": 0.951} | dict.fromkeys(TINY, 0.007),
    "seven tiny ones first": {"python": 0.93} | dict.fromkeys(list(PHASES)[:-1], 0.01),
    "narrow ones between": dict.fromkeys(PHASES, 0.4 / 6)
    | {"copies": 0.3, "sync": 0.3},
}


def draw_step(shares=LOOP, savings=(), **changes):
    given = {"title": "It waits for data", "step_seconds": 0.1} | changes
    return figures.draw_step(shares, savings, **given)


def texts_of(axes):
    return [text.get_text() for text in axes.texts]


def blocks_of(axes):
    """Return (start, stop) of each block of a bar or a lane, by its colour."""
    found = {}
    phases = {to_hex(fill): phase for phase, (fill, *_) in PHASE_LOOKS.items()}
    for patch in axes.patches:
        phase = phases.get(to_hex(patch.get_facecolor()))
        if phase is not None and isinstance(patch, StepPatch):
            edges = patch.get_data().edges
            found[phase] = [*zip(edges[::2], edges[1::2], strict=True)]
        elif phase is not None:
            found[phase] = [(patch.get_x(), patch.get_x() + patch.get_width())]
    return found


def keys_of(legend):
    return [text.get_text() for text in legend.get_texts()]


# ---------------------------------------------------------------- phases


@pytest.mark.parametrize("phase", PHASE_LOOKS)
def test_words_on_a_block_are_readable(phase):
    fill, words, _ = PHASE_LOOKS[phase]
    dark, light = sorted(luminance(to_rgb(colour)) for colour in (fill, words))
    assert (light + 0.05) / (dark + 0.05) >= 4.5


def test_every_phase_has_words_a_colour_and_a_hatch_of_its_own():
    assert [*PHASES, ""] == list(PHASE_LOOKS)
    fills, _, hatches = zip(*PHASE_LOOKS.values(), strict=True)
    assert len(set(fills)) == len(set(hatches)) == len(PHASE_LOOKS)
    assert len(set(PHASES.values())) == len(PHASES)


# Machado, Oliveira and Fernandes (2009): colours as seen without one kind of cone.
BLIND = {
    "red": ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
    "green": ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
    "blue": ((1.256, -0.077, -0.179), (-0.078, 0.931, 0.148), (0.005, 0.691, 0.304)),
}


@pytest.mark.parametrize("matrix", BLIND.values(), ids=BLIND)
def test_the_colour_blind_tell_phases_apart(matrix):
    seen = {}
    for phase, (fill, *_) in PHASE_LOOKS.items():
        linear = [((x + 0.055) / 1.055) ** 2.4 for x in to_rgb(fill)]
        mixed = [sum(map(math.prod, zip(row, linear, strict=True))) for row in matrix]
        seen[phase] = [max(0, x) ** (1 / 2.4) for x in mixed]
    for a, b in itertools.combinations(seen, 2):
        assert math.dist(seen[a], seen[b]) > 0.12, (a, b)


# ---------------------------------------------------------------- a step


def test_blocks_are_as_wide_as_their_shares_and_in_the_order_of_phases():
    blocks = blocks_of(draw_step(dict(reversed(LOOP.items()))).axes[0])
    assert list(blocks) == list(LOOP)
    at = 0
    for phase, share in LOOP.items():
        assert blocks[phase] == [pytest.approx((at, at + share))]
        at += share


def test_shares_that_almost_add_up_fill_the_bar():
    axes = draw_step({"input": 0.6, "forward": 0.395}).axes[0]
    assert axes.get_xlim()[1] == blocks_of(axes)["forward"][0][1] == 0.995


def test_labels_stand_inside_where_there_is_room_and_below_elsewhere():
    axes = draw_step(LOOP | {"sync": 0.003, "copies": 0}).axes[0]
    assert [text for text in texts_of(axes) if text] == [
        "waiting for data\n61 % · 61.0 ms",
        "backward\n19 % · 19.0 ms",
    ]
    assert keys_of(axes.get_legend()) == [
        "forward  14 % · 14.0 ms",
        "optimizer  4.5 % · 4.50 ms",
        "waiting for the device  0.3 % · 300 µs",
        "your own code  1.5 % · 1.50 ms",
    ]


@pytest.mark.parametrize("shares", SHARES.values(), ids=SHARES)
def test_no_label_of_a_step_meets_another_or_leaves_its_block(shares):
    title = "One finding, told in a sentence that takes more than one line " * 2
    figure = draw_step(shares, SAVINGS, overhead=0.31, title=title)
    assert_that_texts_have_room(figure)
    axes, blocks = figure.axes[0], blocks_of(figure.axes[0])
    told = " ".join([*texts_of(axes), *keys_of(axes.get_legend())])
    assert all(PHASES[phase] in told for phase in shares)
    for text, ((start, stop),) in zip(axes.texts, blocks.values(), strict=True):
        box = axes.transData.inverted().transform(text.get_window_extent())
        assert not text.get_text() or (start < box[0][0] and box[1][0] < stop)


def test_overhead_is_written_above_the_key_and_told():
    figure = draw_step({"input": 0.2, "forward": 0.8}, overhead=0.31)
    words = "Eager overhead, across the phases: 31 %"
    assert figure.axes[0].get_legend().get_title().get_text() == words
    assert words in figure.alt


def test_without_overhead_and_savings_there_is_nothing_below_the_bar():
    figure = draw_step()
    assert len(figure.axes) == 1
    assert "overhead" not in figure.alt and "save" not in figure.alt
    assert draw_step(savings=SAVINGS).get_figheight() > figure.get_figheight() + 1


def test_savings_are_bars_from_zero_with_intervals_and_words():
    _, axes = draw_step(savings=SAVINGS).axes
    assert [bar.get_width() for bar in axes.patches] == [0.61, 0.012, -0.02]
    assert {bar.get_x() for bar in axes.patches} == {0}
    intervals = []
    for container in axes.containers:
        if isinstance(container, ErrorbarContainer):
            (((low, _), (high, _)),) = container.lines[2][0].get_segments()
            intervals += [low, high]
    assert intervals == pytest.approx([0.58, 0.64, -0.004, 0.028, -0.05, 0.01])
    words = ["61 % [58, 64]", "1.2 % [−0.4, 2.8]", "−2.0 % [−5.0, 1.0]"]
    assert texts_of(axes) == words
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == [label for label, *_ in SAVINGS]
    low, high = axes.get_ylim()
    assert low > high  # the first row at the top
    assert "of the step's time" in axes.get_xlabel()
    assert axes.xaxis.get_major_formatter()(0.2) == "20 %"


def test_what_may_save_nothing_differs_in_colour_and_in_hatch():
    _, axes = draw_step(savings=SAVINGS).axes
    sure, *doubtful = axes.patches
    assert same_color(sure.get_facecolor(), COLOURS["measured"])
    assert sure.get_hatch() is None
    for bar in doubtful:
        assert same_color(bar.get_facecolor(), COLOURS["baseline"])
        assert bar.get_hatch()


def test_an_unknown_end_or_value_is_neither_drawn_nor_written_as_a_number():
    rows = [("half known", 0.1, NAN, 0.2), ("unknown", None, None, None)]
    figure = draw_step(savings=rows)
    axes = figure.axes[1]
    assert texts_of(axes) == ["10 %", "unknown"]
    assert len(axes.patches) == 1
    assert not any(isinstance(x, ErrorbarContainer) for x in axes.containers)
    assert "half known: 10 %; unknown: unknown" in figure.alt
    assert_that_texts_have_room(figure)


def test_an_enormous_interval_is_cut_and_told_whole():
    long = "a cause whose name goes on for as many as sixty characters.."
    rows = [(long, 0.5, -4, 5), ("a" * 60, 0.1, 0.08, 0.12)]
    figure = draw_step(savings=rows)
    axes = figure.axes[1]
    assert axes.get_xlim() == (-1.5, 1.5)
    assert texts_of(axes)[0] == "50 % [−400, 500]"
    assert long in figure.alt and "95 % interval −400 % to 500 %" in figure.alt
    assert_that_texts_have_room(figure)


def test_a_step_says_all_its_numbers_in_words():
    figure = draw_step(savings=SAVINGS[:1], overhead=0.31)
    assert figure.alt == (
        "Where the 100 ms of a step go. It waits for data. "
        "waiting for data: 61 %, 61.0 ms; forward: 14 %, 14.0 ms; "
        "backward: 19 %, 19.0 ms; optimizer: 4.5 %, 4.50 ms; "
        "your own code: 1.5 %, 1.50 ms. "
        "Eager overhead, across the phases: 31 %. "
        "What removing a cause would save of the step: "
        "cached batches: 61 % (95 % interval 58 % to 64 %)."
    )
    assert figure._repr_mimebundle_()["text/plain"] == figure.alt


# ---------------------------------------------------------------- a timeline


def three_steps():
    lanes = {"main thread": [], "backward thread": [], "workers": [], "device 0": []}
    for at in (0.0, 0.1, 0.2):
        lanes["main thread"] += [
            Span(at, at + 0.055, "input", "waiting for the next batch"),
            Span(at + 0.055, at + 0.072, "forward", "forward"),
            Span(at + 0.072, at + 0.09, "sync", "loss.item()"),
            Span(at + 0.09, at + 0.1, "optimizer", ""),
        ]
        lanes["workers"] += [Span(at + 0.002, at + 0.05, "", "decode")]
        lanes["device 0"] += [Span(at + 0.06, at + 0.09, "backward", "backward")]
    return lanes


def draw_timeline(lanes=None, **changes):
    given = {"title": "The device waits", "marks": [0, 0.1, 0.2]} | changes
    return figures.draw_timeline(three_steps() if lanes is None else lanes, **given)


def test_spans_are_blocks_of_their_phase_over_seconds():
    (axes,) = draw_timeline().axes
    assert axes.get_xlabel() == "time"
    assert axes.get_xlim() == pytest.approx((0, 0.3))
    assert axes.xaxis.get_major_formatter()(0.25) == "250 ms"
    blocks = blocks_of(axes)
    assert set(blocks) == {"input", "forward", "sync", "optimizer", "backward", ""}
    expected = [(0, 0.055), (0.1, 0.155), (0.2, 0.255)]
    assert blocks["input"] == [pytest.approx(ends) for ends in expected]
    expected = [(0.06, 0.09), (0.16, 0.19), (0.26, 0.29)]
    assert blocks["backward"] == [pytest.approx(ends) for ends in expected]


def test_lanes_are_named_from_the_top_and_an_empty_one_is_idle():
    figure = draw_timeline()
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == list(three_steps())
    low, high = axes.get_ylim()
    assert low > high
    (idle,) = [text for text in axes.texts if text.get_text() == "idle"]
    assert idle.get_position()[1] == 1
    assert "backward thread: idle." in figure.alt


def test_steps_are_marked_where_they_begin_and_numbered():
    (axes,) = draw_timeline(marks=[0.1, 0, 0.2, 0.3]).axes
    shown = [text for text in axes.texts if text.get_text().startswith("step")]
    starts = {text.get_text(): text.get_position()[0] for text in shown}
    assert starts == {"step 1": 0, "step 2": 0.1, "step 3": 0.2}
    assert [line.get_xdata()[0] for line in axes.lines] == [0, 0.1, 0.2, 0.3]


@pytest.mark.parametrize("lanes", [1, 2, 12])
@pytest.mark.parametrize("marks", [3, 30])
def test_no_words_of_a_timeline_meet(lanes, marks):
    spans = [
        Span(i / 10, (i + 1) / 10, phase, f"{phase} " * (1 + 7 * (i % 2)))
        for i, phase in enumerate(list(PHASE_LOOKS)[4:])
    ]
    named = {f"a lane with a rather long name, number {i}": spans for i in range(lanes)}
    starts = [i / 2 / marks for i in range(marks)]
    title = "One sentence tells it " * 6
    figure = draw_timeline(named, title=title, marks=starts)
    assert_that_texts_have_room(figure)
    numbered = [t for t in texts_of(figure.axes[0]) if t.startswith("step")]
    assert "step 1" in numbered and 3 <= len(numbered) < 30


def test_a_label_without_room_in_its_block_is_left_out():
    long, short = "x" * 90, "waiting for the next batch"
    spans = [Span(0, 1, "input", long), Span(1, 1.02, "sync", short)]
    figure = draw_timeline({"a": spans, "b": [Span(0, 3, "", short)]}, marks=[])
    assert texts_of(figure.axes[0]) == [short]
    assert long in figure.alt


def test_the_key_shows_the_phases_that_occur_and_no_others():
    (legend,) = draw_timeline().legends
    assert keys_of(legend) == [
        *("waiting for data", "forward", "backward", "optimizer"),
        *("waiting for the device", "other"),
    ]


def test_a_timeline_tells_what_the_time_of_each_lane_goes_to():
    alt = draw_timeline().alt
    assert alt.startswith("Timeline of 300 ms. The device waits. main thread: waiting")
    assert "waiting for data 55 %, forward 17 %, waiting for the device 18 %" in alt
    assert "device 0: backward 30 %, idle 70 %; longest: backward, 30.0 ms from" in alt


def test_time_that_spans_share_is_told_once():
    spans = [Span(0, 2, "communication", "a"), Span(1, 3, "communication", "b")]
    alt = draw_timeline({"a": spans, "b": [Span(0, 4, "", "")]}).alt
    assert "a: other ranks 75 %, idle 25 %" in alt


def test_thousands_of_spans_are_one_path_for_each_phase():
    draw, at, spans = random.Random(1), 0.0, []
    for i in range(3000):
        stop = at + draw.expovariate(1e5)
        spans.append(Span(at, stop, [*PHASES][i % 8], f"op {i}"))
        at = stop + draw.expovariate(1e6)
    figure = draw_timeline({"main thread": spans}, marks=[])
    blocks = blocks_of(figure.axes[0])
    assert {phase: len(ends) for phase, ends in blocks.items()} == dict.fromkeys(
        PHASES, 375
    )
    assert len(to_png(figure)) < 200_000


@pytest.mark.parametrize(("lanes", "marks"), [({"a": []}, []), ({}, [])])
def test_a_timeline_of_nothing_is_an_error(lanes, marks):
    with pytest.raises(ValueError, match="draw_timeline: there is nothing to draw"):
        draw_timeline(lanes, marks=marks)


# ---------------------------------------------------------------- both


@pytest.mark.parametrize("draw", [draw_step, draw_timeline])
def test_a_style_sheet_of_the_readers_changes_neither(draw):
    import matplotlib as mpl

    plain = to_png(draw())
    dark = {"text.color": "white", "axes.facecolor": "black", "font.family": "serif"}
    dark |= {"hatch.linewidth": 3, "axes.grid": True}
    dark |= {"patch.force_edgecolor": True, "axes.spines.left": True}
    with mpl.rc_context(dark):
        assert to_png(draw()) == plain
