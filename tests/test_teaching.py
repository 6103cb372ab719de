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
from kit.teaching import Claim

VERDICTS = ["faster", "slower", "more", "less", "same"]
CHECKS = """
def twice(double):
    assert double(2) == 4, f"twice 2 is 4, not {double(2)}"
    return "it doubles."
def pair(first, second):
    assert first < second
    assert not SEEN, "it starts afresh each time"
    SEEN.append(first)
SEEN = []
"""


@pytest.fixture(autouse=True)
def alone(own_folder, own_journal, monkeypatch, tmp_path):
    (tmp_path / "tutorials/checks").mkdir(parents=True)
    (tmp_path / "tutorials/checks/07.py").write_text(CHECKS, encoding="utf-8")
    monkeypatch.chdir(tmp_path / "tutorials")


def ratio(low, high, verdict, reason="", **more):
    return Ratio((low + high) / 2, low, high, verdict, reason, **more)


FASTER, SLOWER = ratio(1.9, 2.1, "faster"), ratio(0.4, 0.5, "slower")
UNKNOWN = ratio(0.9, 1.3, "cannot tell", "The interval is wide. Measure longer.")
TWO = Comparison([rate_trial(2.0), rate_trial(1.0)], ["n=0", "n=2"])
THREE = Comparison([*TWO.trials, rate_trial(0.5)], ["n=0", "n=2", "n=4"])


def test_what_a_reader_writes_is_escaped():
    text = "Is <b>a</b> & b faster?"
    shown = [kit.guess(text, 2), kit.claim(text, SLOWER, otherwise=text)]
    for each in (*shown, kit.check("07/twice", lambda n: text)):
        page = each._repr_html_()
        assert "<b>a" not in page and html.escape(text, quote=False) in page


@pytest.mark.parametrize("result", [100.0, ratio(90, 110, "more")])
def test_a_guess_is_shown_beside_what_was_measured(result):
    guess = kit.guess("How many?", 80, unit="MB")
    assert "How many?" in repr(guess) and "80 MB" in repr(guess)
    said = repr(guess.check(result))
    assert "Measured: 100 MB." in said and "off by a factor of 1.25" in said
    assert kit.guess("Two?", 2).check(TWO).measured == pytest.approx(2)


def test_without_a_guess_only_what_was_measured_is_shown():
    asked = kit.guess("How many?")
    assert "answer=…" in repr(asked)
    assert repr(asked.check(FASTER)) == "Measured: 2 ×."
    assert "Measured: nan" in repr(asked.check(ratio(math.nan, math.nan, "unclear")))


def test_what_is_no_number_is_no_guess():
    for answer in ("two", "2", math.nan, math.inf, [2], torch.ones(1)):
        with pytest.raises(ValueError, match="is no number") as caught:
            kit.guess("How many?", answer)
        assert repr(answer) in str(caught.value)


@pytest.mark.parametrize(
    "answer", [numpy.float32(2), numpy.int64(2), torch.tensor(2.0), numpy.array(2)]
)
def test_a_number_of_numpy_or_pytorch_is_a_guess(answer):
    checked = kit.guess("How many times?", answer).check(2.0)
    assert "Your guess: 2 ×, off by a factor of 1.00" in repr(checked)


def test_what_was_measured_is_written_as_its_ratio_is():
    checked = kit.guess("How many times?", 2).check(ratio(1300, 1324, "faster"))
    assert "Measured: 1,312 ×." in repr(checked)


@pytest.mark.parametrize("expect", VERDICTS)
def test_a_claim_holds_where_the_verdict_is_the_expected_and_is_open_in_doubt(expect):
    found = [kit.claim("So.", ratio(1, 2, v), expect=expect).verdict for v in VERDICTS]
    assert found == ["✓" if verdict == expect else "✗" for verdict in VERDICTS]
    for bar in (None, 1.5):
        made = kit.claim("So.", UNKNOWN, expect=expect, at_least=bar, otherwise="Or.")
        assert made.verdict == "?" and UNKNOWN.reason in repr(made)
        assert "Or." not in repr(made)


@given(st.lists(st.integers(101, 400), min_size=3, max_size=3, unique=True))
def test_a_bar_needs_the_whole_interval_upward_downward_and_for_differences(sizes):
    bar, a, b = (size / 100 for size in sizes)
    low, high = sorted([a, b])
    cases = [(low, high, "faster", "×"), (low, high, "more", "points")]
    cases += [(1 / high, 1 / low, "less", "×"), (-high, -low, "less", "points")]
    for *ends, expect, unit in cases:
        measured = ratio(*ends, expect, unit=unit)
        made = kit.claim("So.", measured, expect=expect, at_least=bar)
        assert made.verdict == ("✓" if bar < low else "✗" if high < bar else "?")
    assert kit.claim("So.", SLOWER, at_least=bar).verdict == "✗", "the wrong way"


def test_a_claim_says_what_was_found_and_what_it_means_where_it_fails(monkeypatch):
    text = "With one core they only take turns."
    held, failed = (kit.claim("So.", x, otherwise=text) for x in (FASTER, SLOWER))
    assert repr(held).splitlines()[0] == "✓ So." and "2 × [1.9, 2.1]" in repr(held)
    assert text in repr(failed) and text not in repr(held)
    assert JOURNAL[-2:] == [held, failed], "kept for the recording"
    left_open = kit.claim("So.", FASTER, open=True)
    assert left_open.open and Claim(ratio=FASTER, **left_open.to_dict()) == left_open
    monkeypatch.setenv("KIT_QUICK", "1")
    quick = kit.claim("So.", SLOWER, otherwise=text)
    assert quick.verdict == "?" and "recording" in repr(quick)


NO_CLAIMS = [(FASTER, x, repr(x)) for x in ("quicker", None, "cannot tell")]
NO_CLAIMS += [(x, "faster", "ratio") for x in (2.0, None, "faster", TWO.trials[0])]
NO_CLAIMS += [(THREE, "faster", "n=2")]


@pytest.mark.parametrize(("measured", "expect", "word"), NO_CLAIMS)
def test_what_is_no_claim_is_refused_and_not_kept(measured, expect, word):
    before = JOURNAL[:]
    with pytest.raises((TypeError, ValueError)) as caught:
        kit.claim("So it is.", measured, expect=expect)
    assert word in str(caught.value) and len(str(caught.value).splitlines()) <= 6
    assert before == JOURNAL


ANSWERS = [("twice", [lambda n: 2 * n], "✓", "it doubles.")]
ANSWERS += [("twice", [lambda n: n**3], "✗", "twice 2 is 4, not 8")]
ANSWERS += [("twice", [lambda n: n / 0], "✗", "ZeroDivisionError: division by zero")]
ANSWERS += [("pair", [1, 2], "✓", "done."), ("pair", [2, 1], "✗", "not yet")]
ANSWERS += [("pair", [1, None], "○", "not attempted")]


@pytest.mark.parametrize(("name", "answers", "mark", "said"), ANSWERS)
def test_an_answer_is_told_why(tmp_path, monkeypatch, name, answers, mark, said):
    for place in (tmp_path, tmp_path / "tutorials/checks"):
        monkeypatch.chdir(place)
        found = kit.check(f"07/{name}", *answers)
        assert repr(found).startswith(f"{mark} 07/{name}") and said in repr(found)
        assert (found.passed, found.attempted) == (mark == "✓", mark != "○")
    for unknown in (f"07/un{name}", f"99/{name}", name, "", "07/"):
        with pytest.raises(ValueError, match=f"exercise {unknown!r}"):
            kit.check(unknown, None)
