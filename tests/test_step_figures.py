"""A step's bar and a timeline: what is drawn, what is written, and that it fits."""

import itertools
import math
import random
import re

import pytest
from matplotlib.colors import same_color, to_rgb
from matplotlib.container import ErrorbarContainer
from matplotlib.patches import PathPatch
from matplotlib.text import Text

from kit import figures
from kit.figures import Span, timelines
from kit.figures.theme import PHASE_LOOKS, PHASES

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
    """Return (start, stop) of each block, by its colour."""
    found = {}
    for patch in axes.patches:
        if isinstance(patch, PathPatch):
            xs = patch.get_path().vertices[:, 0].reshape(-1, 5)
            ends = [(min(corners), max(corners)) for corners in xs]
            (phase,) = [
                phase
                for phase, (fill, *_) in PHASE_LOOKS.items()
                if same_color(patch.get_facecolor(), fill)
            ]
            found.setdefault(phase, []).extend(ends)
    return found


def boxes_of(figure):
    """Return the place of every text that is seen, in pixels."""
    figure.draw_without_rendering()
    shown = [text for text in figure.findobj(Text) if text.get_text().strip()]
    seen = [text for text in shown if text.get_visible()]
    return {text: Text.get_window_extent(text) for text in seen}


def assert_that_texts_have_room(figure):
    boxes = boxes_of(figure)
    for (a, box), (b, other) in itertools.combinations(boxes.items(), 2):
        apart = box.x1 < other.x0 + 1 or other.x1 < box.x0 + 1
        apart = apart or box.y1 < other.y0 + 1 or other.y1 < box.y0 + 1
        assert apart, f"{a.get_text()!r} and {b.get_text()!r}"
    for text, box in boxes.items():
        inside = 0 <= box.x0 and box.x1 <= figure.bbox.x1
        assert inside and 0 <= box.y0 and box.y1 <= figure.bbox.y1, text


# ---------------------------------------------------------------- phases


def luminance(colour):
    parts = (x / 12.92 if x <= 0.04 else ((x + 0.055) / 1.055) ** 2.4 for x in colour)
    return sum(k * x for k, x in zip((0.2126, 0.7152, 0.0722), parts, strict=True))


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
    figure = draw_step(dict(reversed(LOOP.items())))
    blocks = blocks_of(figure.axes[0])
    assert list(blocks) == list(LOOP)
    across, at = 7.6 - 0.5, 0
    for phase, share in LOOP.items():
        assert blocks[phase] == [pytest.approx((at, at + across * share))]
        at += across * share


def test_shares_that_almost_add_up_fill_the_bar():
    blocks = blocks_of(draw_step({"input": 0.6, "forward": 0.395}).axes[0])
    assert blocks["forward"][0][1] == pytest.approx(7.1)


def test_labels_stand_inside_where_there_is_room_and_above_elsewhere():
    assert texts_of(draw_step().axes[0]) == [
        "waiting for data\n61 % · 61.0 ms",
        "forward\n14 %\n14.0 ms",
        "backward\n19 % · 19.0 ms",
        "optimizer  4.5 % · 4.50 ms",
        "code outside PyTorch  1.5 % · 1.50 ms",
    ]


def test_what_takes_next_to_nothing_is_drawn_and_told_but_not_labelled():
    figure = draw_step({"input": 0.997, "sync": 0.003, "copies": 0})
    assert list(blocks_of(figure.axes[0])) == ["input", "sync"]
    assert texts_of(figure.axes[0]) == ["waiting for data\n100 % · 99.7 ms"]
    assert "waiting for the device: 0.3 %, 300 µs" in figure.alt
    assert "copies" not in figure.alt


@pytest.mark.parametrize("shares", SHARES.values(), ids=SHARES)
@pytest.mark.parametrize("width", [7.6, 5])
def test_no_label_of_a_step_meets_another(shares, width):
    title = "One finding, told in a sentence that takes more than one line " * 2
    figure = draw_step(shares, SAVINGS, overhead=0.31, title=title, width=width)
    assert_that_texts_have_room(figure)
    texts = " ".join(texts_of(figure.axes[0])).replace("\n", " ")
    assert all(PHASES[phase] in texts for phase in shares)


@pytest.mark.parametrize("shares", SHARES.values(), ids=SHARES)
def test_words_inside_a_block_stay_inside_it_and_leaders_reach_theirs(shares):
    canvas = draw_step(shares).axes[0]
    blocks = blocks_of(canvas)
    boxes = boxes_of(canvas.figure)
    crossing = canvas.transData.inverted()
    leaders = sorted(
        line.get_xdata()[0]
        for line in canvas.lines
        if same_color(line.get_color(), figures.COLOURS["muted"])
    )
    middles = []
    for phase, ((start, stop),) in blocks.items():
        (text,) = [
            text
            for text in canvas.texts
            if text.get_text().replace("\n", " ").startswith(PHASES[phase])
        ]
        if "\n" in text.get_text():
            ends = crossing.transform(boxes[text])
            assert start < ends[0][0] and ends[1][0] < stop
        else:
            middles.append((start + stop) / 2)
    assert leaders == pytest.approx(middles)


def test_no_leader_runs_through_words():
    canvas = draw_step(SHARES["narrow ones between"]).axes[0]
    boxes = boxes_of(canvas.figure)
    leaders = [line for line in canvas.lines if len(line.get_ydata()) == 2]
    muted = figures.COLOURS["muted"]
    leaders = [line for line in leaders if same_color(line.get_color(), muted)]
    assert len(leaders) == 6
    for line in leaders:
        (x, y0), (_, y1) = canvas.transData.transform(line.get_xydata())
        for text in canvas.texts:
            box = boxes[text]
            within = box.x0 < x < box.x1
            assert not (within and min(y0, y1) < box.y1 and box.y0 < max(y0, y1))


def test_where_leaders_would_cross_words_labels_have_a_swatch_instead():
    canvas = draw_step(SHARES["narrow ones between"], width=5).axes[0]
    assert {len(ends) for ends in blocks_of(canvas).values()} == {1, 2}
    swatches = [ends[1] for ends in blocks_of(canvas).values() if len(ends) == 2]
    assert len(swatches) == 6
    assert {round(stop - start, 6) for start, stop in swatches} == {0.22}


def test_overhead_is_a_bracket_of_its_length_that_begins_with_the_model():
    figure = draw_step({"input": 0.2, "forward": 0.8}, overhead=0.31)
    canvas = figure.axes[0]
    (bracket,) = [line for line in canvas.lines if len(line.get_xdata()) == 4]
    low, high = min(bracket.get_xdata()), max(bracket.get_xdata())
    assert (low, high) == pytest.approx((0.2 * 7.1, 0.51 * 7.1))
    assert "of which eager overhead: 31 %" in texts_of(canvas)
    assert "Eager overhead, across the phases: 31 %." in figure.alt


@pytest.mark.parametrize(("overhead", "low"), [(0.9, 0.1), (1, 0)])
def test_a_long_bracket_stays_on_the_bar(overhead, low):
    canvas = draw_step({"input": 0.2, "forward": 0.8}, overhead=overhead).axes[0]
    (bracket,) = [line for line in canvas.lines if len(line.get_xdata()) == 4]
    assert min(bracket.get_xdata()) == pytest.approx(low * 7.1)
    assert max(bracket.get_xdata()) == pytest.approx(7.1)


def test_without_overhead_and_savings_there_is_nothing_below_the_bar():
    figure = draw_step()
    assert len(figure.axes) == 1
    assert "overhead" not in figure.alt and "save" not in figure.alt
    without = draw_step().get_figheight()
    assert draw_step(overhead=0.3).get_figheight() > without
    assert draw_step(savings=SAVINGS).get_figheight() > without + 1


def test_savings_are_bars_from_zero_with_intervals_and_words():
    _, axes = draw_step(savings=SAVINGS).axes
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([61, 1.2, -2])
    assert {bar.get_x() for bar in axes.patches} == {0}
    intervals = []
    for container in axes.containers:
        if isinstance(container, ErrorbarContainer):
            (((low, _), (high, _)),) = container.lines[2][0].get_segments()
            intervals += [low, high]
    assert intervals == pytest.approx([58, 64, -0.4, 2.8, -5, 1])
    words = ["61 % [58, 64]", "1.2 % [−0.4, 2.8]", "−2.0 % [−5.0, 1.0]"]
    assert texts_of(axes) == words
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == [label for label, *_ in SAVINGS]
    low, high = axes.get_ylim()
    assert low > high  # the first row at the top
    assert axes.get_xlabel().startswith("% of the step's time")


def test_what_may_save_nothing_differs_in_colour_and_in_hatch():
    _, axes = draw_step(savings=SAVINGS).axes
    sure, *doubtful = axes.patches
    assert same_color(sure.get_facecolor(), figures.COLOURS["measured"])
    assert sure.get_hatch() is None
    for bar in doubtful:
        assert same_color(bar.get_facecolor(), figures.COLOURS["baseline"])
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


def test_an_enormous_interval_is_cut_with_arrows_and_told_whole():
    long = "a cause whose name goes on for as many as sixty characters.."
    rows = [(long, 0.5, -4, 5), ("a" * 60, 0.1, 0.08, 0.12)]
    figure = draw_step(savings=rows)
    axes = figure.axes[1]
    arrows = {line.get_marker(): line.get_xdata()[0] for line in axes.lines}
    assert (arrows["<"], arrows[">"]) == (-50, 100)
    assert texts_of(axes)[0] == "50 % [−400, 500]"
    assert long in figure.alt and "95 % interval −400 % to 500 %" in figure.alt
    assert_that_texts_have_room(figure)


def test_a_step_says_all_its_numbers_in_words():
    figure = draw_step(savings=SAVINGS[:1], overhead=0.31)
    assert figure.alt == (
        "Where the 100 ms of a step go. It waits for data. "
        "waiting for data: 61 %, 61.0 ms; forward: 14 %, 14.0 ms; "
        "backward: 19 %, 19.0 ms; optimizer: 4.5 %, 4.50 ms; "
        "code outside PyTorch: 1.5 %, 1.50 ms. "
        "Eager overhead, across the phases: 31 %. "
        "What removing a cause would save of the step: "
        "cached batches: 61 % (95 % interval 58 % to 64 %)."
    )
    assert figure._repr_mimebundle_()["text/plain"] == figure.alt


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"shares": {"input": 0.5, "magic": 0.5}}, "'magic'.*'input'"),
        ({"shares": {"input": 0.5, "": 0.5}}, "no phase"),
        ({"shares": {"input": 0.5, "sync": 0.48}}, "add up to 0.98"),
        ({"shares": {"input": 1.2, "sync": -0.2}}, "sync has no share: -0.2"),
        ({"shares": {"input": NAN}}, "input has no share: nan"),
        ({"shares": {}}, "add up to 0"),
        ({"step_seconds": 0}, "not 0 s"),
        ({"step_seconds": NAN}, "not nan s"),
        ({"overhead": 1.2}, "overhead=1.2"),
        ({"overhead": NAN}, "overhead=nan"),
    ],
)
def test_a_step_that_cannot_be_drawn_is_an_error(changes, words):
    with pytest.raises(ValueError, match=f"draw_step: .*{words}"):
        draw_step(**changes)


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


def test_spans_are_blocks_of_their_phase_in_milliseconds():
    _, axes = draw_timeline().axes
    assert axes.get_xlabel() == "milliseconds"
    assert axes.get_xlim() == pytest.approx((0, 300))
    blocks = blocks_of(axes)
    assert set(blocks) == {"input", "forward", "sync", "optimizer", "backward", ""}
    expected = [(0, 55), (100, 155), (200, 255)]
    assert blocks["input"] == [pytest.approx(ends) for ends in expected]
    expected = [(60, 90), (160, 190), (260, 290)]
    assert blocks["backward"] == [pytest.approx(ends) for ends in expected]


def test_lanes_are_named_from_the_top_and_an_empty_one_is_idle():
    figure = draw_timeline()
    axes = figure.axes[1]
    assert [label.get_text() for label in axes.get_yticklabels()] == list(three_steps())
    low, high = axes.get_ylim()
    assert low > high
    (idle,) = [text for text in axes.texts if text.get_text() == "idle"]
    assert idle.get_position()[1] == 1
    assert "backward thread: idle." in figure.alt


@pytest.mark.parametrize(
    ("seconds", "unit", "shown"),
    [(3, "seconds", 3), (0.3, "milliseconds", 300), (0.0003, "microseconds", 300)],
)
def test_the_axis_has_the_unit_that_fits(seconds, unit, shown):
    _, axes = draw_timeline({"a": [Span(0, seconds, "", "")]}, marks=[]).axes
    assert axes.get_xlabel() == unit
    assert blocks_of(axes)[""] == [pytest.approx((0, shown))]


def test_steps_are_marked_where_they_begin_and_numbered():
    _, axes = draw_timeline(marks=[0.1, 0, 0.2, 0.3]).axes
    shown = [text for text in axes.texts if text.get_text().startswith("step")]
    assert [text.get_text() for text in shown] == ["step 1", "step 2", "step 3"]
    starts = [text.get_position()[0] for text in shown]
    assert starts == pytest.approx([0, 100, 200], abs=5)
    lines = {round(line.get_xdata()[0]) for line in axes.lines}
    assert lines == {0, 100, 200, 300}


def test_numbers_of_many_steps_are_left_out_where_they_would_overlap():
    figure = draw_timeline(marks=[i / 100 for i in range(30)])
    shown = [text for text in texts_of(figure.axes[1]) if text.startswith("step")]
    assert "step 1" in shown and 3 < len(shown) < 30
    assert_that_texts_have_room(figure)


@pytest.mark.parametrize("lanes", [1, 2, 12])
def test_no_words_of_a_timeline_meet(lanes):
    spans = [
        Span(i / 10, (i + 1) / 10, phase, f"{phase} " * 8)
        for i, phase in enumerate(list(PHASE_LOOKS)[4:])
    ]
    named = {f"a lane with a rather long name, number {i}": spans for i in range(lanes)}
    figure = draw_timeline(named, title="One sentence tells it " * 6)
    assert_that_texts_have_room(figure)


def test_a_label_is_cut_to_its_block_or_left_out():
    long, short = "x" * 60, "waiting for the next batch"
    spans = [Span(0, 1, "input", long), Span(1, 1.02, "sync", short)]
    figure = draw_timeline({"a": spans, "b": [Span(0, 3, "", short)]}, marks=[])
    axes = figure.axes[1]
    cut, whole = texts_of(axes)
    assert re.fullmatch("x{5,}…", cut)
    assert whole == short
    box = axes.transData.inverted().transform(boxes_of(figure)[axes.texts[0]])
    assert 0 < box[0][0] and box[1][0] < 1
    assert long in figure.alt


def test_the_key_shows_the_phases_that_occur_and_no_others():
    canvas = draw_timeline().axes[0]
    assert texts_of(canvas) == [
        *("waiting for data", "forward", "backward", "optimizer"),
        *("waiting for the device", "other"),
    ]
    assert list(blocks_of(canvas)) == [
        *("input", "forward", "backward", "optimizer", "sync", ""),
    ]


def test_a_timeline_tells_how_busy_each_lane_is_and_its_longest_spans():
    alt = draw_timeline().alt
    assert alt.startswith(
        "Timeline of 300 ms. The device waits. main thread: busy 27 %"
    )
    assert "waiting for data 55 %, waiting for the device 18 %, idle 0 %" in alt
    assert "device 0: busy 30 %, idle 70 %; longest: backward (30.0 ms from" in alt


def test_what_began_last_is_seen_where_spans_overlap():
    outer, inner = Span(0, 9, "forward", "a"), Span(2, 3, "sync", "b")
    late = Span(8, 12, "input", "c")
    pieces = timelines.flatten([late, outer, inner])
    assert pieces == [
        Span(0, 2, "forward", "a"),
        Span(2, 3, "sync", "b"),
        Span(3, 8, "forward", "a"),
        Span(8, 12, "input", "c"),
    ]


def test_pieces_never_overlap_and_cover_what_the_spans_cover():
    draw = random.Random(1)
    starts = [draw.randrange(100) for _ in range(60)]
    spans = [Span(x, x + draw.randrange(9), draw.choice("ab"), "") for x in starts]
    pieces = timelines.flatten(spans)
    assert all(a.stop <= b.start for a, b in itertools.pairwise(pieces))
    for x in range(110):
        covered = any(s.start <= x < s.stop for s in spans)
        assert covered == any(p.start <= x < p.stop for p in pieces)


def test_neighbours_merge_only_within_a_phase_and_below_the_gap():
    spans = [
        *(Span(0, 1, "forward", ""), Span(1.04, 2, "forward", "")),
        *(Span(2, 3, "sync", ""), Span(3.2, 4, "sync", "")),
    ]
    assert timelines.merge(spans, 0.1) == [
        *(Span(0, 2, "forward", ""), Span(2, 3, "sync", ""), Span(3.2, 4, "sync", "")),
    ]


def test_wide_neighbours_keep_their_labels():
    named = [Span(0, 1, "forward", "conv"), Span(1, 2, "forward", "linear")]
    assert timelines.merge(named, 0.1) == named
    same = [span._replace(label="conv") for span in named]
    assert timelines.merge(same, 0.1) == [Span(0, 2, "forward", "conv")]
    tiny = [Span(i, i + 1, "forward", f"op {i}") for i in range(1000)]
    assert timelines.merge(tiny, 200) == [Span(0, 1000, "forward", "")]


def test_what_is_too_small_to_see_shows_the_phase_that_takes_most():
    spans = []
    for i in range(1000):
        spans += [Span(i, i + 0.7, "backward", ""), Span(i + 0.7, i + 1, "sync", "")]
    merged = timelines.merge(spans, 100)
    assert merged == [Span(0, 1000, "backward", "")]


def test_ten_thousand_spans_are_no_more_blocks_than_can_be_seen():
    draw, at, spans = random.Random(1), 0.0, []
    for i in range(10_000):
        stop = at + draw.expovariate(1e5)
        spans.append(Span(at, stop, [*PHASES][i % 8], f"op {i}"))
        at = stop + draw.expovariate(1e6)
    figure = draw_timeline({"main thread": spans}, marks=[])
    drawn = sum(map(len, blocks_of(figure.axes[1]).values()))
    assert 100 < drawn < 2 * 7.1 * 200  # at most one per half pixel
    assert len(figures.to_png(figure)) < 200_000


@pytest.mark.parametrize(
    ("lanes", "marks", "words"),
    [
        ({"a": [Span(0, 1, "magic", "x")]}, [], "'x' of 'a': no phase 'magic'"),
        ({"a": [Span(2, 1, "sync", "x")]}, [], "'x' of 'a' lasts from 2 s to 1 s"),
        ({"a": [Span(0, NAN, "sync", "")]}, [], "'sync' of 'a' lasts"),
        ({"a": [Span(0, 1, "", "")]}, [NAN], "a mark"),
        ({"a": []}, [], "nothing to draw"),
        ({}, [0, 1], "nothing to draw"),
    ],
)
def test_a_timeline_that_cannot_be_drawn_is_an_error(lanes, marks, words):
    with pytest.raises(ValueError, match=f"draw_timeline: .*{words}"):
        draw_timeline(lanes, marks=marks)


# ---------------------------------------------------------------- both


@pytest.mark.parametrize("draw", [draw_step, draw_timeline])
def test_a_style_sheet_of_the_readers_changes_neither(draw):
    import matplotlib as mpl

    plain = figures.to_png(draw())
    dark = {"text.color": "white", "axes.facecolor": "black", "font.family": "serif"}
    dark |= {"hatch.linewidth": 3, "axes.grid": True}
    dark |= {"patch.force_edgecolor": True, "axes.spines.left": True}
    with mpl.rc_context(dark):
        assert figures.to_png(draw()) == plain


@pytest.mark.parametrize("draw", [draw_step, draw_timeline])
def test_cards_have_the_width_that_is_asked_for(draw):
    assert draw().get_figwidth() == 7.6
    assert draw(width=9).get_figwidth() == 9
