"""The panel of number formats: what it takes, what its buttons do, what it tells."""

import math
import threading

import pytest
from helpers import refused
from panels import HTML, VIEW, Shown, alt_of, rows_of, text_of

from kit.costs import FORMATS, NumberFormat, take_apart
from kit.panel import Formats
from kit.panel.formats import describe, read_number
from kit.panel.formats_view import MOST_BITS


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """No way of showing asked for."""
    monkeypatch.delenv("KIT_STATIC", raising=False)


@pytest.fixture
def show(monkeypatch):
    return lambda *given, **more: Shown(Formats(*given, **more), monkeypatch)


def type_in(shown, text):
    shown.find("kit-number").value = text


def bits_of(shown):
    """The digits on the buttons that are seen."""
    bits = [shown.find(f"kit-bit-{place}") for place in range(MOST_BITS)]
    return "".join(bit.description for bit in bits if bit.layout.display != "none")


# What it takes


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.1", 0.1),
        (" 65520 ", 65520),
        ("1/3", 1 / 3),
        ("2**-24", 2**-24),
        ("2^-24 * 3", 3 * 2**-24),
        ("-(1 + 2**-10)", -1 - 2**-10),
        ("−1e-7", -1e-7),
        ("inf", math.inf),
        ("-INF", -math.inf),
        ("1_000", 1000),
        (7, 7),
        (-0.0, -0.0),
    ],
)
def test_numbers_and_small_calculations_are_read(text, value):
    assert read_number(text) == value
    assert Formats(text).value == value


def test_what_is_not_a_number_is_a_number_here():
    assert math.isnan(read_number("nan")) and math.isnan(Formats(math.nan).value)


@pytest.mark.parametrize(
    "text",
    [
        *("", "   ", "abc", "1/0", "1 +", "0.1, 0.2", "True", "'1'", "[1]", "1j"),
        *("__import__('os')", "a.b", "(lambda: 1)()", "1 if 1 else 2", "x := 1"),
        *("(-1) ** 0.5", "1" * 101, "1\0", "~1", "7 // 2", None, [1], "0" + "-" * 99),
    ],
)
def test_anything_else_is_refused_and_the_field_is_named(text):
    refused(lambda: read_number(text), "Formats: number=", "is not a number", "1/3")
    refused(lambda: Formats(text), "Formats: number=", "is not a number", "2**-24")


@pytest.mark.parametrize("text", ["9**9**9", "10**400", "1e308 ** 2"])
def test_what_is_far_too_large_is_refused_at_once(text):
    refused(lambda: read_number(text), "Formats: number=", "larger than any number")


def test_formats_are_chosen_by_name():
    panel = Formats(0.1, ["bfloat16", "float8_e5m2"])
    assert list(panel.parts) == ["bfloat16", "float8_e5m2"]
    assert panel.chosen == "bfloat16"
    assert Formats().chosen == "float16" and Formats(1, ["float32"]).chosen == "float32"
    tiny = {"tiny": NumberFormat("tiny", 2, 1)}
    assert Formats(2.6, tiny).parts["tiny"].stored == 3
    with pytest.raises(ValueError, match="formats: 'half' is not there"):
        Formats(1, ["half"])


def test_the_repr_is_constant():
    panel = Formats(0.1)
    before = repr(panel)
    panel.set(70000)
    panel.choose("bfloat16")
    assert repr(panel) == before == f"Number formats: {', '.join(FORMATS)}"


# From code


def test_parts_are_those_of_the_number():
    panel = Formats()
    for value in (0.1, 65520, -(2**-24), math.inf):
        panel.set(value)
        assert panel.value == value and panel.parts == take_apart(value).parts


@pytest.mark.parametrize("name", [n for n, f in FORMATS.items() if f.bits <= MOST_BITS])
def test_every_bit_can_be_flipped_and_back(name):
    panel = Formats(0.1)
    panel.choose(name)
    panel.set(FORMATS[name].round(0.1))
    begun = panel.bits, panel.value
    for place in range(FORMATS[name].bits):
        panel.flip(place)
        changed = [a != b for a, b in zip(panel.bits, begun[0], strict=True)]
        assert changed == [n == place for n in range(len(changed))]
        assert FORMATS[name].decode(int(panel.bits, 2)) == panel.value
        panel.flip(place)
        assert (panel.bits, panel.value) == begun


def test_bits_of_what_is_not_a_number_stay_as_they_were_made():
    panel = Formats("inf")
    panel.flip(15)
    assert math.isnan(panel.value) and panel.bits == "0111110000000001"
    panel.flip(14)
    assert math.isnan(panel.value) and panel.bits == "0111110000000011"
    panel.choose("bfloat16")
    assert panel.bits == f"{FORMATS['bfloat16'].encode(math.nan):016b}"


def test_steps_go_to_neighbours_of_the_chosen_format():
    panel = Formats(0.1, ["float16", "bfloat16"])
    panel.step(1)
    assert panel.value == FORMATS["float16"].step(0.1)
    panel.choose("bfloat16")
    panel.set(1)
    panel.step(-1)
    assert panel.value == 1 - 2**-8
    panel.scale(-2)
    assert panel.value == -2 + 2**-7


def test_what_is_not_there_is_refused():
    panel = Formats(0.1, ["float16"])
    refused(lambda: panel.choose("bfloat16"), "Formats.choose()", "float16")
    refused(lambda: panel.flip(16), "Formats.flip()", "float16 has no bit 16")
    refused(lambda: panel.flip(-1), "Formats.flip()", "0 to 15")
    assert panel.value == 0.1


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("float16", 65520, "65520 overflows to inf: the largest number is 65504"),
        ("float16", 1e-9, "1e-09 underflows to 0: the smallest number is 6e-08"),
        (
            "float16",
            2**-23,
            "is exact. The next larger number is 6e-08 away. It is",
        ),
        ("float16", 2**-23, "below 6.1e-05: of 11 bits of precision 2 bits are left"),
        ("float16", 2**-24, "precision 1 bit is left"),
        ("float16", 0.1, "0.1 is 0.0999755859375, off by 0.024 %. The next larger"),
        ("float16", 0.0, "0 is exact. The next larger number is 6e-08 away"),
        ("float16", math.inf, "inf is infinite"),
        ("float16", math.nan, "nan is not a number"),
        ("float8_e4m3fn", 1e6, "1000000 is cut to 448: the largest number is 448"),
        ("float8_e4m3fn", math.inf, "inf is cut to 448"),
    ],
)
def test_what_a_format_makes_of_a_number_is_said(name, value, said):
    assert describe(FORMATS[name], value).startswith(f"In {name}, ")
    assert said in describe(FORMATS[name], value)


# As widgets


def test_it_shows_bits_a_picture_a_sentence_and_a_table(show):
    shown = show(0.1)
    assert bits_of(shown) == "0010111001100110"
    assert shown.alt.startswith("The bits of numbers, by format. 0.1 is off by 6.3 %")
    assert [row[0] for row in shown.history] == list(FORMATS)
    assert text_of(shown.html("summary")) == describe(FORMATS["float16"], 0.1)
    assert shown.find("kit-number").value == "0.1"


@pytest.mark.parametrize(
    ("button", "value"),
    [
        ("double", 0.5),
        ("halve", 0.125),
        ("negate", -0.25),
        ("larger", 0.25 + 2**-12),
        ("smaller", 0.25 - 2**-13),
        ("bit-0", -0.25),
        ("bit-15", 0.25 + 2**-12),
        ("bit-1", 0.25 * 2**16),
    ],
)
def test_buttons_change_the_number_and_all_that_is_shown(show, button, value):
    shown = show(0.25)
    shown.press(button)
    assert shown.panel.value == value
    assert float(shown.find("kit-number").value) == value
    assert bits_of(shown) == f"{FORMATS['float16'].encode(value):016b}"
    rows = {row[0]: row[4] for row in shown.history}
    assert float(rows["float16"]) == value
    assert shown.alt == alt_of(take_apart(value).picture)


def test_a_number_is_typed_and_stays_as_it_was_typed(show):
    shown = show()
    type_in(shown, "1/3")
    assert shown.panel.value == 1 / 3 and shown.find("kit-number").value == "1/3"
    assert "0.333251953125" in text_of(shown.html("summary"))


def test_what_is_wrong_is_said_and_changes_nothing(show):
    shown = show(0.5)
    before = shown.html("picture"), shown.html("history")
    type_in(shown, "abc")
    assert "number='abc' is not a number" in shown.alert and "1/3" in shown.alert
    assert shown.find("kit-number").value == "abc" and shown.panel.value == 0.5
    assert (shown.html("picture"), shown.html("history")) == before
    type_in(shown, "2")
    assert shown.alert == "" and shown.panel.value == 2
    assert shown.status == "Type a number and press Enter, or press a button."


def test_another_format_has_bits_and_neighbours_of_its_own(show):
    shown = show(1.0)
    for name, form in FORMATS.items():
        shown.knob("format").value = name
        few = form.bits <= MOST_BITS
        assert len(bits_of(shown)) == (form.bits if few else 0)
        label = text_of(shown.html("bits-label"))
        assert name in label and few == ("press one to flip it" in label)
        type_in(shown, "1")
        shown.press("larger")
        assert shown.panel.value == 1 + form.epsilon


def test_bits_have_the_class_and_the_words_of_their_part(show):
    shown = show(0.1)
    for name in ("float8_e4m3fn", "float16", "bfloat16", "tfloat32"):
        form = FORMATS[name]
        shown.knob("format").value = name
        sizes = {"sign": 1, "exponent": form.exponent_bits, "mantissa": 99}
        parts = [part for part, size in sizes.items() for _ in range(size)][: form.bits]
        for place, part in enumerate(parts):
            bit = shown.find(f"kit-bit-{place}")
            classes = {f"kit-bit-{p}" for p in sizes} & {*bit._dom_classes}
            assert classes == {f"kit-bit-{part}"} and part in bit.tooltip


def test_set_and_choose_from_code_are_shown(show):
    shown = show(0.1)
    shown.panel.set("65520")
    assert "overflows to inf" in text_of(shown.html("summary"))
    shown.panel.choose("bfloat16")
    assert shown.knob("format").value == "bfloat16"
    assert shown.find("kit-number").value == "65520"


def test_a_press_on_another_thread_is_shown_too(show):
    """As JupyterLab has it, which runs handlers beside the cells' thread."""
    shown = show(0.25)
    threads = [
        threading.Thread(target=shown.press, args=(name,))
        for name in ("double", "negate", "double")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert shown.panel.value == -1
    assert shown.alt == alt_of(take_apart(-1).picture)
    assert bits_of(shown) == f"{FORMATS['float16'].encode(-1):016b}"


def test_what_is_kept_follows_the_number(show):
    shown = show(0.1)
    assert "0.1 is off by" in shown.stored
    shown.press("double")
    assert "0.2 is off by" in shown.stored and VIEW not in shown.stored
    rows = rows_of(shown.stored)
    assert [row[0] for row in rows] == list(FORMATS)


def test_static_is_a_picture_a_sentence_and_a_table(monkeypatch, smoke):
    monkeypatch.setenv("KIT_STATIC", "1")
    shown = Shown(Formats(70000), monkeypatch)
    (data,) = shown.outputs
    assert VIEW not in data and data["text/plain"] == repr(shown.panel)
    assert alt_of(data[HTML]) and "70000 overflows to inf" in text_of(data[HTML])
    assert [row[0] for row in rows_of(data[HTML])] == list(FORMATS)


def test_a_closed_panel_does_nothing_more(show):
    shown = show(0.5)
    shown.panel.close()
    assert "has ended" in shown.status
    assert shown.find("kit-double").disabled and shown.find("kit-number").disabled
    shown.panel.set(2)  # from code the number still changes
    assert shown.panel.value == 2 and "has ended" in shown.status
