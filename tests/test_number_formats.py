"""Number formats agree with PyTorch's own, bit for bit."""

import itertools
import math
import random
import struct

import pytest
import torch

from kit.costs import FORMATS, NumberFormat, take_apart

DTYPES = [name for name in FORMATS if hasattr(torch, name)]
SMALL = [name for name in DTYPES if FORMATS[name].bits <= 16]
NARROW = [name for name in FORMATS if FORMATS[name].bits < 32]
CASES = 20_000


def integers(name):
    """The dtype in which a format's bits are a whole number."""
    return {8: torch.uint8, 16: torch.uint16, 32: torch.uint32}[FORMATS[name].bits]


def same(one, other):
    """Whether two floats are the same, zeros by their sign; what is none is alike."""
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return one == other and math.copysign(1, one) == math.copysign(1, other)


def as_float32(bits):
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def numbers_around(format):
    """float32 numbers that are hard to round: random ones, ties and the edges."""
    rng = random.Random(format.bits)
    found = [as_float32(rng.getrandbits(32)) for _ in range(CASES // 4)]
    low, high = math.log2(format.smallest) - 3, math.log2(format.largest) + 2
    for _ in range(CASES // 4):
        size = rng.uniform(1, 2) * 2 ** rng.uniform(low, min(high, 126))
        found.append(rng.choice((-1, 1)) * size)
    for _ in range(CASES // 8):  # ties, and one float32 to either side
        pattern = rng.randrange(2 ** (format.bits - 1))
        size = format.decode(pattern)
        if not size < format.largest:
            continue
        tie = size + format.gap(size) / 2
        found += [size, tie, tie * (1 + 2**-23), tie * (1 - 2**-23)]
    edges = [format.largest, format.smallest_normal, format.smallest, 0.0]
    for edge in [*edges, format.largest + format.gap(format.largest) / 2]:
        found += [edge * (1 + k * 2**-23) for k in range(-4, 5)]
        found += [edge * (0.5 + k * 2**-23) for k in range(-4, 5)]
    found += [math.inf, -math.inf, math.nan, -0.0, 1e38, -1e38, 2.0**-149]
    # As float32, because PyTorch rounds anything else to float32 first.
    exact = torch.tensor(found, dtype=torch.float64).float()
    return torch.cat([exact, -exact])


@pytest.mark.parametrize("name", SMALL)
def test_every_pattern_is_the_number_that_pytorch_reads(name):
    format = FORMATS[name]
    patterns = torch.arange(2**format.bits).to(integers(name))
    read = patterns.view(getattr(torch, name)).double().tolist()
    assert len(read) == 2**format.bits
    wrong = [n for n, number in enumerate(read) if not same(format.decode(n), number)]
    assert not wrong


@pytest.mark.parametrize("name", SMALL)
def test_every_number_goes_back_to_its_pattern(name):
    format = FORMATS[name]
    for pattern in range(2**format.bits):
        number = format.decode(pattern)
        back = format.encode(number, saturate=False)
        assert back == pattern or (
            math.isnan(number) and math.isnan(format.decode(back))
        )


@pytest.mark.parametrize("name", DTYPES)
def test_rounding_is_pytorchs_cast(name):
    """Bit for bit, but for the bits of what is not a number: PyTorch makes several."""
    format, numbers = FORMATS[name], numbers_around(FORMATS[name])
    cast = numbers.to(getattr(torch, name))
    bits = cast.view(integers(name)).long().tolist()
    wrong = []
    for number, pattern, isnan in zip(
        numbers.tolist(), bits, cast.float().isnan().tolist(), strict=True
    ):
        found = format.encode(number)
        right = math.isnan(format.decode(found)) if isnan else found == pattern
        if not right or not same(format.round(number), format.decode(found)):
            wrong.append(number)
    assert len(numbers) > CASES and not wrong


def test_tfloat32_is_float32_with_a_rounded_tail():
    """PyTorch has no cast to it: float32's own bits, rounded as whole numbers are."""
    format, tail = FORMATS["tfloat32"], 13
    numbers = numbers_around(format)
    for number in numbers.tolist():
        bits = struct.unpack("<I", struct.pack("<f", number))[0]
        sign, size = bits >> 31, bits & 0x7FFFFFFF
        if math.isnan(number):
            assert math.isnan(format.round(number))
            continue
        kept, rest = divmod(size, 2**tail)
        half = 2 ** (tail - 1)
        kept += rest > half or (rest == half and kept % 2)
        assert format.encode(number) == sign << 18 | kept
        assert same(format.round(number), as_float32(sign << 31 | kept << tail))


@pytest.mark.parametrize("name", DTYPES)
def test_limits_are_those_that_pytorch_knows(name):
    format, known = FORMATS[name], torch.finfo(getattr(torch, name))
    assert (format.bits, format.largest) == (known.bits, known.max)
    assert (format.epsilon, format.smallest_normal) == (known.eps, known.tiny)
    assert format.decode(1) == format.smallest


@pytest.mark.parametrize("name", FORMATS)
def test_the_gap_leads_to_the_next_number(name):
    format, rng = FORMATS[name], random.Random(1)
    last = format.encode(format.largest)
    patterns = [0, 1, 2, last - 1, *(rng.randrange(last) for _ in range(2000))]
    for pattern in patterns:
        here, there = format.decode(pattern), format.decode(pattern + 1)
        assert format.gap(here) == format.gap(-here) == there - here
        # Between two numbers it is the distance of the two.
        assert format.gap((here + there) / 2) == there - here
    assert format.gap(format.largest) == format.largest - format.decode(last - 1)
    assert format.gap(math.nextafter(format.largest, math.inf)) == math.inf
    assert math.isnan(format.gap(math.nan))


def test_saturating_is_a_choice():
    assert FORMATS["float8_e4m3fn"].round(1e6) == 448
    assert math.isnan(FORMATS["float8_e4m3fn"].round(1e6, saturate=False))
    assert FORMATS["float8_e4m3fn"].round(464, saturate=False) == 448  # a tie
    assert FORMATS["float8_e5m2"].round(-1e6) == -math.inf
    assert FORMATS["float8_e5m2"].round(-1e6, saturate=True) == -57344


def test_what_is_no_float32_is_rounded_once():
    """PyTorch, which rounds it to float32 first, comes to the wrong side of the tie."""
    value = 1 + 2**-11 + 2**-40
    assert FORMATS["float16"].round(value) == 1 + 2**-10
    twice = torch.tensor([value], dtype=torch.float64).float().to(torch.float16)
    assert twice.item() == 1


@pytest.mark.parametrize("name", DTYPES)
def test_parts_are_the_bits(name):
    for value in (0.1, -3.0, 1e-6, 0.0, -math.inf, 2**-140, 70000):
        part = FORMATS[name].take_apart(value)
        bits = f"{part.sign}{part.exponent}{part.mantissa}"
        assert int(bits, 2) == part.pattern == FORMATS[name].encode(value)
        assert len(part.exponent) == FORMATS[name].exponent_bits
        assert len(part.mantissa) == FORMATS[name].mantissa_bits
        assert part.stored == FORMATS[name].round(value)


@pytest.mark.parametrize(
    ("name", "value", "kind", "said"),
    [
        ("float16", 0.1, "normal", "off by 0.024 %"),
        ("float16", -0.5, "normal", "exact"),
        ("float16", 1e-7, "subnormal", "off by 19 %"),
        ("float16", -0.0, "zero", "exact"),
        ("float16", 1e-9, "zero", "underflow to 0"),
        ("float16", 65520, "infinite", "overflow"),
        ("float16", 65519.9, "normal", "off by 0.024 %"),
        ("float16", math.inf, "infinite", "exact"),
        ("float16", math.nan, "not a number", "not a number"),
        ("float8_e4m3fn", 464, "normal", "off by 3.4 %"),
        ("float8_e4m3fn", 1000, "normal", "overflow, cut to the largest"),
        ("float8_e4m3fn", -math.inf, "normal", "overflow, cut to the largest"),
        ("float8_e4m3fn", math.nan, "not a number", "not a number"),
    ],
)
def test_what_becomes_of_a_number_is_said(name, value, kind, said):
    part = FORMATS[name].take_apart(value)
    assert (part.kind, part.error_text) == (kind, said)
    assert repr(part).startswith(f"{name} {part.sign} {part.exponent} {part.mantissa} ")
    assert repr(part).endswith(f"{said})") and "\n" not in repr(part)


def test_relative_errors():
    errors = {
        0.1: (0.1 - 0.0999755859375) / 0.1,
        1.0: 0.0,
        1e-9: 1.0,
        1e9: math.inf,
        -math.inf: 0.0,
        0.0: 0.0,
    }
    for value, error in errors.items():
        assert FORMATS["float16"].take_apart(value).relative_error == error
    assert math.isnan(FORMATS["float16"].take_apart(math.nan).relative_error)
    assert FORMATS["float8_e4m3fn"].take_apart(math.inf).relative_error == 1


@pytest.mark.parametrize(
    ("value", "title"),
    [
        (0.1, "0.1 is off by 6.3 % in float8_e5m2"),
        (1e6, "1000000 is too large for float16, float8_e4m3fn and float8_e5m2"),
        (1e-6, "1e-06 is too small for float8_e4m3fn and float8_e5m2"),
        (
            -0.5,
            "-0.5 is stored exactly, in float32, tfloat32, bfloat16, float16, "
            "float8_e4m3fn and float8_e5m2",
        ),
        (math.inf, "inf is too large for float8_e4m3fn"),
        (math.nan, "Every format can store what is not a number"),
    ],
)
def test_a_number_in_all_formats_is_a_sentence_and_a_table(value, title):
    apart = take_apart(value)
    assert apart.title == title
    assert list(apart.parts) == list(FORMATS)
    lines = repr(apart).splitlines()
    assert lines[0] == title and len(lines) == 2 + len(FORMATS)
    for part, line in zip(apart.parts.values(), lines[2:], strict=True):
        assert part.format in line and part.mantissa in line
        assert ("subnormal" in line) == (part.kind == "subnormal")
        assert part.error_text.removeprefix("off by ") in line
    page = apart._repr_html_()
    assert title in page and page.count("<tr>") == 1 + len(FORMATS)


def test_formats_are_chosen_by_name_or_made():
    assert list(take_apart(1, ["float16", "bfloat16"]).parts) == ["float16", "bfloat16"]
    tiny = NumberFormat("tiny", exponent_bits=2, mantissa_bits=1)
    assert [tiny.decode(n) for n in range(6)] == [0, 0.5, 1, 1.5, 2, 3]
    assert take_apart(2.6, {"tiny": tiny}).parts["tiny"].stored == 3


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: take_apart("a"), "take_apart(): value='a' is not a number"),
        (lambda: take_apart([1]), "take_apart(): value=[1] is not a number"),
        (lambda: take_apart(1, ["half"]), "take_apart(): formats: 'half' is not there"),
        (lambda: take_apart(1, []), "take_apart(): formats: none is given"),
        (lambda: FORMATS["float16"].decode(2**16), "is not a pattern of 16 bits"),
        (lambda: FORMATS["float16"].round("a"), "value='a' is not a number"),
        (lambda: NumberFormat("x", 11, 3), "exponent_bits=11 is not a whole number"),
        (lambda: NumberFormat("x", 5, 0), "mantissa_bits=0 is not a whole number"),
    ],
)
def test_what_is_wrong_is_said(wrong, said):
    with pytest.raises(ValueError) as caught:
        wrong()
    assert said in str(caught.value)


def test_a_whole_number_beyond_all_floats_is_too_large():
    assert take_apart(-(10**400)).parts["float32"].stored == -math.inf


# Neighbours


@pytest.mark.parametrize("name", SMALL)
def test_steps_lead_through_every_number(name):
    format = FORMATS[name]
    most = math.inf if not format.finite_only else format.largest
    number, seen = -most, 0
    while number < most:
        higher = format.step(number)
        assert higher > number and same(format.step(higher, -1), number)
        between = (number + higher) / 2
        if math.isfinite(between):
            assert same(format.step(between), higher)
            assert same(format.step(between, -1), number)
        number, seen = higher, seen + 1
    patterns = 2**format.bits - 1  # both zeros are one number
    not_numbers = 2 * (2**format.mantissa_bits - 1) if not format.finite_only else 2
    assert seen == patterns - not_numbers - 1
    assert format.step(most) == most and format.step(-most, -1) == -most


@pytest.mark.parametrize("name", FORMATS)
def test_numbers_of_a_stretch_are_all_of_them(name):
    format, rng = FORMATS[name], random.Random(2)
    for _ in range(200):
        low = format.decode(rng.randrange(format.encode(format.largest)))
        low = rng.choice((-1, 1)) * low * rng.uniform(0.9, 1)
        high = low + format.gap(low) * rng.uniform(0, 9)
        found = format.list_numbers(low, high)
        assert format.count_numbers(low, high) == len(found)
        assert all(low <= number <= high for number in found)
        if not found:
            assert format.step(low) > high
            continue
        assert found[0] == low or format.step(low) == found[0]
        assert found[-1] == high or format.step(high, -1) == found[-1]
        steps = itertools.pairwise(found)
        assert all(format.step(one) == other for one, other in steps)
    with pytest.raises(ValueError, match="is not from low to high"):
        format.count_numbers(1, math.nan)
    assert format.count_numbers(math.inf, math.inf) == 0


# The picture


def test_a_plot_shows_bits_and_the_numbers_around():
    figure = take_apart(0.1).plot()
    assert figure.alt.startswith(
        "The bits of numbers, by format. 0.1 is off by 6.3 % in float8_e5m2."
    )
    assert (
        "float16: sign 0, exponent 01011, mantissa 1001100110, is 0.0999" in figure.alt
    )
    assert "float8_e4m3fn: 6, float8_e5m2: 3" in figure.alt
    _, axes = figure.axes
    lines = [x for x in axes.lines if x.get_marker() == "|"]
    inside = FORMATS["float8_e5m2"].list_numbers(*axes.get_xlim())
    assert list(lines[-1].get_xdata()) == inside and 0.09375 in inside
    assert [x.get_xdata()[0] for x in axes.lines if x.get_label() == "value"] == [0.1]


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e300])
def test_a_plot_of_what_has_no_neighbours_is_the_bits_alone(value):
    assert len(take_apart(value).plot().axes) == 1


@pytest.mark.parametrize("value", [0, -0.0, 1e-50, 1e30, -65520, 3.4e38, 2**-149])
def test_every_finite_value_can_be_drawn(value):
    assert len(take_apart(value).plot().axes) == 2
