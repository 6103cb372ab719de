"""Guesses, claims and exercise checks: what they say, and what they keep."""

import math
import os
import subprocess
import sys
import textwrap
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from test_ratio import make_comparison, make_trial

import kit
from kit import teaching
from kit.comparison import Comparison
from kit.ratio import Ratio
from kit.teaching import Claim, check
from kit.trial import JOURNAL

ROOT = Path(__file__).resolve().parents[1]
HOLDS, FAILS, OPEN = "✓", "✗", "?"


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """A cache of its own, full length, and a journal that is given back."""
    monkeypatch.setenv("KIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("KIT_SMOKE", raising=False)
    before = JOURNAL[:]
    yield
    JOURNAL[:] = before


def ratio(low, high, verdict, reason="", **more):
    return Ratio((low + high) / 2, low, high, verdict, reason, **more)


FASTER = ratio(1.9, 2.1, "faster")
SLOWER = ratio(0.4, 0.5, "slower")
MORE = ratio(1.9, 2.1, "more")
LESS = ratio(0.4, 0.5, "less")
SAME = ratio(0.99, 1.01, "same")
UNKNOWN = ratio(0.9, 1.3, "cannot tell", "the interval is wide; measure longer")
RATIOS = {
    "faster": FASTER,
    "slower": SLOWER,
    "more": MORE,
    "less": LESS,
    "same": SAME,
}


def words(page):
    """The text of a page, which must be well escaped."""
    pieces = []
    parser = HTMLParser()
    parser.handle_data = pieces.append
    parser.feed(page)
    return " ".join(pieces)


# Guesses


def test_a_guess_says_its_question_and_number():
    text = repr(kit.guess("How many times as fast?", answer=2))
    assert "How many times as fast?" in text
    assert "2" in text
    assert "×" in text


def test_a_guess_has_a_unit():
    guess = kit.guess("How much memory?", answer=20, unit="MB")
    assert "MB" in repr(guess)
    assert "MB" in repr(guess.check(25))
    assert "×" not in repr(guess.check(25))


def test_no_answer_yet_asks_for_one_and_does_no_harm():
    guess = kit.guess("How many times as fast?")
    assert "answer" in repr(guess)
    checked = guess.check(FASTER)
    assert "2" in repr(checked), "what was measured"
    assert "no guess" in repr(checked).lower()
    assert (checked.points, checked.guesses) == (0, 0)


@pytest.mark.parametrize("answer", ["two", math.nan, math.inf, [2]])
def test_an_answer_that_is_no_number_is_an_error(answer):
    with pytest.raises((ValueError, TypeError)) as caught:
        kit.guess("How many?", answer=answer)
    assert repr(answer) in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 6


@pytest.mark.parametrize(
    "result",
    [2.0, 2, FASTER, make_comparison(FASTER)],
    ids=["number", "whole number", "ratio", "comparison"],
)
def test_a_guess_is_checked_against_any_result(result):
    checked = kit.guess("How many?", answer=2).check(result)
    assert checked.measured == 2
    assert checked.points == 3


def test_a_comparison_of_several_asks_for_one():
    several = make_comparison(labels=("n=0", "n=2", "n=4"))
    guess = kit.guess("How many?", answer=2)
    with pytest.raises(ValueError, match="n=2"):
        guess.check(several)
    assert guess.check(several.ratios["n=2"]).points == 3


def points(answer, measured):
    return kit.guess(f"{answer} for {measured}?", answer=answer).check(measured).points


def test_the_nearer_the_more_points():
    totals = [points(answer, 100) for answer in (100, 109, 149, 199, 201, 5000)]
    gained = [after - before for before, after in pairwise([0, *totals])]
    assert gained == [3, 3, 2, 1, 0, 0]


def test_too_low_is_as_wrong_as_too_high():
    gained = []
    for answer in (100 / 1.09, 100 / 1.49, 100 / 1.99, 100 / 2.01):
        checked = kit.guess(f"Is it {answer}?", answer=answer).check(100)
        gained.append(checked.points - sum(gained))
    assert gained == [3, 2, 1, 0]


@pytest.mark.parametrize(
    ("answer", "measured"), [(2, -2), (-2, 2), (0, 2), (2, 0), (2, math.nan)]
)
def test_a_guess_of_the_wrong_sign_or_a_failed_measurement(answer, measured):
    checked = kit.guess("How many?", answer=answer).check(measured)
    assert checked.points == 0
    assert isinstance(repr(checked), str)


def test_a_failed_measurement_does_not_use_up_the_guess():
    guess = kit.guess("How many?", answer=2)
    failed = Ratio(math.nan, math.nan, math.nan, "cannot tell", "it failed; run again")
    assert guess.check(failed).guesses == 0
    assert guess.check(2.0).points == 3


def test_only_the_first_check_is_scored():
    assert kit.guess("How many?", answer=5).check(2.0).points == 0
    second = kit.guess("How many?", answer=2).check(2.0)
    assert (second.points, second.guesses) == (0, 1)


def test_a_good_first_check_is_not_spoilt_by_a_second():
    guess = kit.guess("How many?", answer=2)
    assert guess.check(2.0).points == 3
    again = guess.check(20.0)
    assert (again.points, again.guesses) == (3, 1)
    assert "10" in repr(again), "it still says by how much it is off"


def test_questions_are_scored_one_by_one():
    kit.guess("First?", answer=2).check(2.0)
    kit.guess("Second?", answer=3).check(2.0)
    third = kit.guess("Third?", answer=9).check(2.0)
    assert (third.points, third.guesses) == (5, 3)
    assert "5 of 9" in repr(third)


def run_elsewhere(code):
    """Run code in another process with this one's cache; return what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    return done.stdout.split()


def test_the_score_is_kept_from_one_process_to_the_next():
    code = """
        import kit
        checked = kit.guess("How many?", answer={}).check(2.0)
        print(checked.points, checked.guesses)
    """
    assert run_elsewhere(code.format(2)) == ["3", "1"]
    assert run_elsewhere(code.format(50)) == ["3", "1"]
    here = kit.guess("Another?", answer=2).check(3.0)
    assert (here.points, here.guesses) == (5, 2)


def test_the_score_is_in_the_kits_cache(tmp_path):
    kit.guess("How many?", answer=2).check(2.0)
    assert [p for p in (tmp_path / "cache").rglob("*") if p.is_file()]


def test_a_damaged_score_does_no_harm(tmp_path):
    kit.guess("First?", answer=2).check(2.0)
    for path in (tmp_path / "cache").rglob("*"):
        if path.is_file():
            path.write_text("{ not JSON", encoding="utf-8")
    assert kit.guess("Second?", answer=2).check(2.0).points == 3


@pytest.mark.parametrize("content", ["[]", "null"])
def test_a_score_of_another_kind_does_no_harm(tmp_path, content):
    kit.guess("First?", answer=2).check(2.0)
    for path in (tmp_path / "cache").rglob("*"):
        if path.is_file():
            path.write_text(content, encoding="utf-8")
    assert kit.guess("Second?", answer=2).check(2.0).points == 3


def test_a_cache_that_cannot_be_written_does_no_harm(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("KIT_CACHE", str(tmp_path / "file"))
    checked = kit.guess("How many?", answer=2).check(2.0)
    assert "2" in repr(checked)


def test_a_smoke_run_scores_nothing(monkeypatch):
    monkeypatch.setenv("KIT_SMOKE", "1")
    assert kit.guess("How many?", answer=2).check(2.0).guesses == 0
    monkeypatch.delenv("KIT_SMOKE")
    assert kit.guess("How many?", answer=2).check(2.0).guesses == 1


def test_a_guess_in_html_is_escaped():
    guess = kit.guess("Is <b>a</b> & b faster?", answer=2)
    for shown in (guess, guess.check(2.0)):
        assert "<b>" not in shown._repr_html_()
    assert "Is <b>a</b> & b faster?" in words(guess._repr_html_())


# Claims


@pytest.mark.parametrize("expect", RATIOS)
@pytest.mark.parametrize("measured", RATIOS)
def test_a_claim_holds_where_the_verdict_is_the_expected(expect, measured):
    made = kit.claim("So it is.", RATIOS[measured], expect=expect)
    assert made.verdict == (HOLDS if measured == expect else FAILS)


@pytest.mark.parametrize("expect", RATIOS)
def test_a_claim_is_open_where_nobody_can_tell(expect):
    made = kit.claim("So it is.", UNKNOWN, expect=expect)
    assert made.verdict == OPEN
    assert "measure longer" in repr(made)


def test_faster_is_expected_by_default():
    assert kit.claim("So it is.", FASTER).verdict == HOLDS
    assert kit.claim("So it is.", SLOWER).verdict == FAILS


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(1.5, 1.7, HOLDS), (1.4, 1.6, OPEN), (1.2, 1.49, FAILS), (1.2, 1.5, OPEN)],
)
def test_at_least_needs_the_whole_interval(low, high, verdict):
    made = kit.claim("At least half as much again.", ratio(low, high, "faster"))
    assert made.verdict == HOLDS
    strict = kit.claim("And so it is.", ratio(low, high, "faster"), at_least=1.5)
    assert strict.verdict == verdict


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.4, 0.5, HOLDS), (0.45, 0.6, OPEN), (0.6, 0.9, FAILS)],
)
@pytest.mark.parametrize("expect", ["slower", "less"])
def test_at_least_is_a_factor_downward_too(low, high, verdict, expect):
    """A half of the memory is a saving by a factor of two."""
    made = kit.claim("Half.", ratio(low, high, expect), expect=expect, at_least=2)
    assert made.verdict == verdict


@pytest.mark.parametrize(
    ("low", "high", "expect", "verdict"),
    [
        (0.03, 0.05, "more", HOLDS),
        (0.01, 0.05, "more", OPEN),
        (-0.05, -0.03, "less", HOLDS),
        (-0.05, -0.01, "less", OPEN),
        (-0.015, -0.012, "less", FAILS),
    ],
)
def test_at_least_of_a_metric_is_a_difference(low, high, expect, verdict):
    difference = ratio(low, high, expect, unit="accuracy")
    made = kit.claim("Two points.", difference, expect=expect, at_least=0.02)
    assert made.verdict == verdict


def test_at_least_does_not_save_the_wrong_direction():
    assert kit.claim("Twice.", SLOWER, at_least=1.5).verdict == FAILS
    assert kit.claim("Twice.", UNKNOWN, at_least=1.5).verdict == OPEN


def test_a_claim_shows_its_mark_sentence_and_figures():
    text = repr(kit.claim("Two workers are faster.", FASTER))
    assert text.splitlines()[0] == "✓ Two workers are faster."
    assert "[1.9, 2.1]" in text
    assert "2 ×" in text


def test_otherwise_is_said_where_it_does_not_hold_and_only_there():
    text = "With one core they only take turns."
    assert text in repr(kit.claim("So it is.", SLOWER, otherwise=text))
    assert text not in repr(kit.claim("So it is.", FASTER, otherwise=text))
    assert text not in repr(kit.claim("So it is.", UNKNOWN, otherwise=text))


def test_a_claim_takes_a_comparison_of_two():
    assert kit.claim("So it is.", make_comparison(FASTER)).ratio is FASTER


def test_a_claim_on_several_ratios_asks_for_one():
    with pytest.raises(ValueError, match="n=2"):
        kit.claim("So it is.", make_comparison(labels=("n=0", "n=2", "n=4")))


@pytest.mark.parametrize("expect", ["quicker", "", None, "cannot tell", "Faster"])
def test_an_unknown_expectation_is_an_error(expect):
    before = len(JOURNAL)
    with pytest.raises(ValueError, match="faster") as caught:
        kit.claim("So it is.", FASTER, expect=expect)
    assert repr(expect) in str(caught.value)
    assert len(JOURNAL) == before


@pytest.mark.parametrize("measured", [2.0, None, "faster", make_trial()])
def test_a_claim_needs_a_ratio(measured):
    before = len(JOURNAL)
    with pytest.raises(TypeError) as caught:
        kit.claim("So it is.", measured)
    assert "ratio" in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 6
    assert len(JOURNAL) == before


def test_a_smoke_run_judges_nothing(monkeypatch):
    monkeypatch.setenv("KIT_SMOKE", "1")
    for measured in (FASTER, SLOWER, UNKNOWN):
        made = kit.claim("So it is.", measured, otherwise="Or else.")
        assert made.verdict == OPEN
        assert "recording" in repr(made)
        assert "Or else." not in repr(made)


def test_a_claim_is_kept_for_the_recording():
    made = kit.claim("So it is.", FASTER)
    assert isinstance(made, Claim)
    assert JOURNAL[-1] is made


def test_a_claim_in_html_is_escaped():
    made = kit.claim("<b>a</b> & b", SLOWER, otherwise="See <i>there</i>.")
    page = made._repr_html_()
    assert "<b>" not in page
    assert "<i>" not in page
    assert "✗ <b>a</b> & b" in words(page)
    assert "See <i>there</i>." in words(page)


@pytest.mark.parametrize("measured", [FASTER, SLOWER, UNKNOWN])
def test_a_claim_may_stay_open_which_changes_nothing_here(measured):
    """Only who judges recordings looks at it."""
    made = kit.claim("So it is.", measured, open=True)
    plain = kit.claim("So it is.", measured)
    assert (made.open, plain.open) == (True, False)
    assert repr(made) == repr(plain)
    assert made.to_dict() == {**plain.to_dict(), "open": True}
    assert Claim(ratio=measured, **made.to_dict()) == made


# Exercise checks


CHECKS = '''
def twice(double):
    """The function doubles."""
    assert double(2) == 4, f"twice 2 is 4, not {double(2)}"
    return "it doubles."


def pair(first, second):
    assert first < second, "the first is not smaller"


def silent(attempt):
    assert attempt > 1


def watched(attempt):
    """It looks at what is kept."""
    SEEN.append(attempt)
    assert SEEN == [attempt]


SEEN = []
'''


@pytest.fixture(params=["tutorials", "tutorials/deep/er", "."])
def exercises(request, tmp_path, monkeypatch):
    """Checks of a made-up chapter, seen from a notebook's folder or from the top."""
    folder = tmp_path / "tutorials" / "checks"
    folder.mkdir(parents=True)
    (folder / "07.py").write_text(CHECKS, encoding="utf-8")
    place = tmp_path / request.param
    place.mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(place)


def test_nothing_attempted_does_not_raise(exercises):
    found = check("07/twice", None)
    assert (found.passed, found.attempted) == (False, False)
    assert "not attempted" in repr(found)
    assert not {"✓", "✗"} & set(repr(found))


def test_a_solution_passes_and_is_told_so(exercises):
    found = check("07/twice", lambda n: 2 * n)
    assert (found.passed, found.attempted) == (True, True)
    assert "✓" in repr(found)
    assert "it doubles." in repr(found)


def test_a_wrong_answer_is_told_why(exercises):
    found = check("07/twice", lambda n: n * n * n)
    assert (found.passed, found.attempted) == (False, True)
    assert "✗" in repr(found)
    assert "twice 2 is 4, not 8" in repr(found)


def test_an_answer_that_raises_shows_what_it_raised(exercises):
    found = check("07/twice", lambda n: n / 0)
    assert (found.passed, found.attempted) == (False, True)
    assert "ZeroDivisionError" in repr(found)
    assert "division by zero" in repr(found)


def test_an_answer_of_the_wrong_kind_does_not_raise(exercises):
    found = check("07/twice", "double")
    assert found.attempted
    assert not found.passed
    assert "TypeError" in repr(found)


def test_a_check_without_words_still_says_something(exercises):
    assert repr(check("07/silent", 2)).strip().endswith("done.")
    failed = check("07/silent", 1)
    assert not failed.passed
    assert failed.message


def test_the_kit_itself_offers_check(exercises):
    assert kit.check is check
    assert kit.check("07/twice", lambda n: 2 * n).passed


def test_an_exercise_may_have_several_answers(exercises):
    assert check("07/pair", 1, 2).passed
    assert "the first is not smaller" in repr(check("07/pair", 2, 1))
    assert not check("07/pair", 1, None).attempted
    assert "TypeError" in repr(check("07/pair", 1))


def test_checks_start_afresh_each_time(exercises):
    assert check("07/watched", "one").passed
    assert check("07/watched", "two").passed


@pytest.mark.parametrize("name", ["07/absent", "99/twice", "twice", "", "07/"])
def test_an_unknown_exercise_is_an_error(exercises, name):
    with pytest.raises(ValueError, match="exercise") as caught:
        check(name, None)
    assert repr(name) in str(caught.value)


def test_a_result_in_html_is_escaped(exercises):
    page = check("07/twice", lambda n: "<b>8</b>")._repr_html_()
    assert "<b>" not in page
    assert "<b>8</b>" in words(page)
    assert "07/twice" in words(page)


def test_there_is_one_set_of_marks():
    assert (teaching.HOLDS, teaching.FAILS, teaching.OPEN) == (HOLDS, FAILS, OPEN)
    assert isinstance(make_comparison(), Comparison)
