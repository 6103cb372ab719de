"""Guesses, claims and exercise checks: what they say, and what they keep."""

import html
import math

import numpy
import pytest
import torch
from helpers import JOURNAL
from hypothesis import given, strategies as st
from trials import rate_trial

import kit
from kit.measuring.report import Comparison
from kit.measuring.verdict import Ratio
from kit.teaching import Claim, expect

VERDICTS = ["faster", "slower", "more", "less", "same"]
CHECKS = """
def twice(double):
    assert double(2) == 4, f"twice 2 is 4, not {double(2)}"
    return "it doubles."
def fresh(answer):
    assert not SEEN
    SEEN.append(answer)
SEEN = []
"""


@pytest.fixture(autouse=True)
def alone(own_folder, own_journal, tmp_path):
    (tmp_path / "tutorials/checks").mkdir(parents=True)
    (tmp_path / "tutorials/checks/07.py").write_text(CHECKS, encoding="utf-8")


def ratio(low, high, verdict, reason="", **more):
    return Ratio((low + high) / 2, low, high, verdict, reason, **more)


FASTER = ratio(1.9, 2.1, "faster")
SLOWER = ratio(0.4, 0.5, "slower")
UNKNOWN = ratio(0.9, 1.3, "cannot tell", "The interval is wide.")
TWO = Comparison([rate_trial(2.0), rate_trial(1.0)], ["n=0", "n=2"])
THREE = Comparison([*TWO.trials, rate_trial(0.5)], ["n=0", "n=2", "n=4"])


def test_what_a_reader_writes_is_escaped():
    text = "Is <b>a</b> & b faster?"
    shown = [kit.guess(text, 2), kit.claim(text, SLOWER, otherwise=text)]
    for each in (*shown, kit.check("07/twice", lambda n: text)):
        page = each._repr_html_()
        assert "<b>a" not in page and html.escape(text, quote=False) in page


# Guesses


@pytest.mark.parametrize("answer", [80, numpy.float32(80), torch.tensor(80.0)])
def test_a_guess_is_shown_with_what_was_measured(answer):
    guess = kit.guess("How many?", answer, unit="MB")
    assert "How many?" in repr(guess) and "80 MB" in repr(guess)
    for result in (100.0, ratio(90, 110, "more")):
        said = repr(guess.check(result))
        assert "100 MB" in said and "80 MB" in said and "1.25" in said
    assert guess.check(TWO).measured == pytest.approx(2)


@pytest.mark.parametrize("answer", ["two", "2", math.nan, [2], torch.ones(1)])
def test_what_is_no_number_is_no_guess(answer):
    with pytest.raises(ValueError, match="answer=") as caught:
        kit.guess("How many?", answer)
    assert repr(answer) in str(caught.value)


# Claims


@pytest.mark.parametrize("expected", VERDICTS)
def test_a_claim_holds_where_the_verdict_is_the_expected(expected):
    for verdict in VERDICTS:
        made = kit.claim("So.", ratio(1, 2, verdict), expect=expected)
        assert made.verdict == ("✓" if verdict == expected else "✗")
    unknown = kit.claim("So.", UNKNOWN, expect=expected, otherwise="Or.")
    assert unknown.verdict == "?" and UNKNOWN.reason in repr(unknown)


@given(st.lists(st.integers(101, 400), min_size=3, max_size=3, unique=True))
def test_a_bar_needs_the_whole_interval_upward_downward_and_for_differences(sizes):
    bar = sizes[0] / 100
    low, high = sorted(size / 100 for size in sizes[1:])
    found = {
        "faster": ratio(low, high, "faster"),
        "less": ratio(1 / high, 1 / low, "less"),
        "more": ratio(low, high, "more", unit="points"),
        "slower": ratio(-high, -low, "slower", unit="points"),
    }
    for expected, measured in found.items():
        made = kit.claim("So.", measured, expect=expected, at_least=bar)
        assert made.verdict == ("✓" if bar < low else "✗" if high < bar else "?")
    assert kit.claim("So.", SLOWER, at_least=bar).verdict == "✗", "the wrong way"


def test_a_claim_says_what_was_found_and_what_it_means_where_it_fails():
    text = "With one core they only take turns."
    held = kit.claim("So.", FASTER, otherwise=text)
    failed = kit.claim("So.", SLOWER, otherwise=text)
    assert "✓ So." in repr(held) and "2 × [1.9, 2.1]" in repr(held)
    assert text in repr(failed) and text not in repr(held)
    assert JOURNAL[-2:] == [held, failed], "kept for the recording"
    assert Claim(ratio=SLOWER, **failed.to_dict()) == failed


def test_quick_mode_judges_no_claim(quick):
    assert kit.claim("So.", SLOWER).verdict == "?"


@pytest.mark.parametrize(
    ("measured", "expected", "word"),
    [
        (FASTER, "quicker", "'quicker'"),
        (FASTER, "cannot tell", "'cannot tell'"),
        (2.0, "faster", "2.0"),
        (THREE, "faster", "n=2"),
    ],
)
def test_what_is_no_claim_is_refused_and_not_kept(measured, expected, word):
    with pytest.raises((TypeError, ValueError), match=word):
        kit.claim("So it is.", measured, expect=expected)
    assert not JOURNAL


# Exercises


@pytest.mark.parametrize(
    ("name", "answer", "mark", "said"),
    [
        ("twice", lambda n: 2 * n, "✓", "it doubles."),
        ("twice", lambda n: n**3, "✗", "twice 2 is 4, not 8"),
        ("twice", lambda n: n / 0, "✗", "ZeroDivisionError: division by zero"),
        ("twice", None, "○", ""),
        ("fresh", 1, "✓", "done"),
        ("fresh", 2, "✓", "done"),  # the file runs anew each time
    ],
)
def test_an_answer_gets_a_mark_and_a_reason(
    tmp_path, monkeypatch, name, answer, mark, said
):
    monkeypatch.chdir(tmp_path / "tutorials")
    found = kit.check(f"07/{name}", answer)
    assert repr(found).startswith(f"{mark} 07/{name}") and said in repr(found)
    assert (found.passed, found.attempted) == (mark == "✓", mark != "○")


@pytest.mark.parametrize("unknown", ["07/untwice", "99/twice", "twice", ""])
def test_an_exercise_that_is_not_there_is_named(unknown):
    with pytest.raises(ValueError, match=repr(unknown)):
        kit.check(unknown, None)


RIGHT = [
    (2 + 1e-9, 2.0),
    (torch.tensor(2.0), 2.0),
    ([1, (2.0, 3)], (1, [2, 3])),
    ({"a": [1.0]}, {"a": [1]}),
]
WRONG = [
    (2.1, 2),
    (None, 2.0),
    (True, 1.0),
    ([1], [1, 2]),
    ({"a": 1}, {"a": 1, "b": 2}),
]


@pytest.mark.parametrize(("found", "right"), RIGHT)
def test_a_check_by_cases_takes_equal_numbers_within_lists_and_dictionaries(
    found, right
):
    expect(lambda n: found, [((0,), right), ((1,), right)])


@pytest.mark.parametrize(("found", "right"), WRONG)
def test_a_check_by_cases_names_the_first_that_is_wrong(found, right):
    cases = [((0,), right), ((7,), right)]
    with pytest.raises(AssertionError, match=r"for 7 .*A hint\."):
        expect(lambda n: found if n else right, cases, hint="A hint.")
