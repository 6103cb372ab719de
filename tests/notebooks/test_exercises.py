"""Exercises: each waits for an answer, and plausible wrong ones are refused."""

import re

import pytest
import torch
from project import CHAPTERS, TUTORIALS, every_chapter, read_wrong

from kit.teaching import check

#: As "chapter/name", in their order: what a chapter asks `check` about, in JSON.
CALL = re.compile(r"\bcheck\((?:\\n|[^\w)])*(\d\d/\w+)")
TEXT = "".join(path.read_text("utf-8") for path in CHAPTERS)
EXERCISES = [*dict.fromkeys(CALL.findall(TEXT))]


@every_chapter
def test_a_chapter_has_three_exercises_or_more_with_wrong_answers(path):
    number = path.name[:2]
    asked = [name for name in EXERCISES if name.startswith(number)]
    assert 2 < len(asked) and asked == [f"{number}/{x}" for x in read_wrong(number)]


@pytest.fixture(scope="module")
def compiler():
    """Load what `torch.compile` needs, so that no test pays for it."""
    torch.compile(lambda x: x + 1, backend=lambda graph, _: graph)(torch.ones(2))


@pytest.mark.parametrize("exercise", EXERCISES)
def test_an_exercise_waits_and_refuses_a_plausible_wrong_answer_with_a_reason(
    exercise, quick, compiler, monkeypatch
):
    monkeypatch.chdir(TUTORIALS)
    number, name = exercise.split("/")
    assert not check(exercise, None).attempted
    answers = read_wrong(number)[name]
    assert 2 <= len(answers) <= 3
    for answer in answers:
        found = check(exercise, answer)
        assert found.attempted and not found.passed, f"it takes {answer}"
        assert len(found.message) > 20, "it does not say why"
        assert not found.message.startswith("it raised"), found
