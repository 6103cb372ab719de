"""Exercises: each waits for an answer, and plausible wrong ones are refused."""

import pytest
from project import CHAPTERS, TUTORIALS, list_exercises
from wrong_answers import WRONG

from kit.teaching import check

EXERCISES = [name for path in CHAPTERS for name in list_exercises(path)]


@pytest.mark.parametrize("exercise", EXERCISES)
def test_an_exercise_exists_and_waits_for_an_answer(exercise, monkeypatch):
    monkeypatch.chdir(TUTORIALS)
    assert not check(exercise, None).attempted


@pytest.mark.parametrize("exercise", WRONG)
def test_a_plausible_wrong_answer_is_refused_with_a_reason(
    exercise, quick, monkeypatch
):
    assert exercise in EXERCISES
    monkeypatch.chdir(TUTORIALS)
    found = check(exercise, WRONG[exercise])
    assert found.attempted and not found.passed
    assert len(found.message) > 20, "it does not say why"
    assert not found.message.startswith("it raised"), found
