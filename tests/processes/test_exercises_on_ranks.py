"""Exercises that are checked on ranks: wrong answers are refused with a reason."""

import pytest
from notebooks.wrong_answers import WRONG_ON_RANKS
from project import TUTORIALS

import kit
from kit.teaching import check


@pytest.fixture(scope="module")
def ranks():
    with kit.start_ranks(2, timeout=3) as started:
        yield started


@pytest.fixture(autouse=True)
def in_tutorials(monkeypatch):
    monkeypatch.chdir(TUTORIALS)


@pytest.mark.parametrize("exercise", WRONG_ON_RANKS)
def test_a_wrong_answer_is_refused_with_a_reason(ranks, exercise):
    found = check(exercise, WRONG_ON_RANKS[exercise], ranks)
    assert found.attempted and not found.passed
    assert len(found.message) > 20 and not found.message.startswith("it raised")


def test_an_answer_that_fails_on_a_rank_reads_why_and_the_next_one_is_checked(ranks):
    def fails(losses, add_up, ranks):
        raise ValueError("no such luck")

    def solves(losses, add_up, ranks):
        return ranks * losses.sum() / add_up(len(losses))

    assert "ValueError: no such luck" in check("12/local_loss", fails, ranks).message
    assert check("12/local_loss", solves, ranks).passed
