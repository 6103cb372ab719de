"""Chapter 13's plans leave the sum, and its simulated network and its formula agree."""

import math
from pathlib import Path

import nbformat
import pytest

from kit.costs import LINKS

CHAPTER = Path(__file__).resolve().parents[2] / "tutorials" / "13_communication.ipynb"
LINK = LINKS["InfiniBand NDR"]


@pytest.fixture(scope="module")
def chapter():
    """What the chapter's cells define, without what they run or measure."""
    names = {"__name__": "__main__"}
    for cell in nbformat.read(CHAPTER, 4).cells:
        parts = cell.source.split("\n\n\n")
        if cell.id == "imports":
            exec(parts[0].partition("torch.set_num_threads")[0], names)
        if cell.id in (
            "message",
            "root",
            "tree",
            "ring",
            "curve",
            "crossover",
            "hierarchy",
        ):
            for part in parts:
                if part.startswith(("def ", "fields", "cards", "link, rows")):
                    exec(part.partition("\nfor n in")[0], names)
    return names


def carry_out(steps, n):
    """Return what ranks have in the end; each begins with a number only it has."""
    steps = list(steps)
    places = math.lcm(*(m.parts for step in steps for m in step))
    have = [[(n + 1) ** rank] * places for rank in range(n)]
    for step in steps:
        before = [list(tensor) for tensor in have]
        for m in step:
            size = places // m.parts
            for place in range(m.part * size, (m.part + 1) * size):
                old = have[m.receiver][place] if m.adds else 0
                have[m.receiver][place] = old + before[m.sender][place]
    return have


@pytest.mark.parametrize("n", [2, 3, 5, 8, 12])
@pytest.mark.parametrize("name", ["through_root", "tree", "ring"])
def test_a_plan_leaves_the_sum_and_takes_what_the_formula_says(chapter, name, n):
    plan, wanted = chapter[name], sum((n + 1) ** rank for rank in range(n))
    assert all(set(tensor) == {wanted} for tensor in carry_out(plan(n), n))
    for size in (8, 1e5, 1e9):
        took = chapter["simulate"](plan(n), size, chapter["own_way"])
        assert took == pytest.approx(chapter["predict_all_reduce"](plan, n, size, LINK))


@pytest.mark.parametrize("gpus", [1, 2, 3, 4])
def test_a_hierarchy_leaves_the_sum(chapter, gpus):
    n = 3 * gpus
    wanted = sum((n + 1) ** rank for rank in range(n))
    for tensor in carry_out(chapter["hierarchical"](n, gpus), n):
        assert set(tensor) == {wanted}


@pytest.mark.parametrize("cards", [8, 4, 1])
def test_messages_between_machines_queue_for_their_cards(chapter, cards, monkeypatch):
    monkeypatch.setitem(chapter, "cards", cards)
    took = chapter["simulate"](chapter["hierarchical"](64, 8), 1e8, chapter["way"])
    inside, part = LINKS["NVLink 4"], 1e8 / 8
    between = LINK.latency_seconds + part / 8 / LINK.bytes_per_second
    within = inside.latency_seconds + part / inside.bytes_per_second
    assert took == pytest.approx(14 * within + 14 * 8 / cards * between)
