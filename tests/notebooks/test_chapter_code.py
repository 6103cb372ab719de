"""Code that readers take from chapters does what the chapter says of it."""

import ast
import threading

import nbformat
import pipelines
import pytest
import rl_16
import rpc_16
import torch
from hypothesis import given, strategies as st
from project import TUTORIALS


def define(name, *cells):
    """Return what cells of a chapter define, without what they run or measure."""
    names = {"__name__": "__main__"}
    kinds = ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom
    for cell in nbformat.read(TUTORIALS / name, as_version=4).cells:
        if cell.id in cells:
            kept = [
                node for node in ast.parse(cell.source).body if isinstance(node, kinds)
            ]
            exec(compile(ast.Module(kept, []), name, "exec"), names)
    return names


# More on chapter 00: a trainer's callback becomes a generator


def test_a_trainer_ends_with_the_measurement_and_its_error_reaches_the_reader(tidy):
    steps_of = define("more/00_trainers.ipynb", "imports", "recipe")["steps_of"]
    has_ended = threading.Event()

    def fit(on_step):
        try:
            on_step(3)
            on_step(4)
            raise RuntimeError("no more data")
        finally:
            has_ended.set()

    steps = steps_of(fit)
    assert next(steps) == 3
    assert next(steps) == 4
    with pytest.raises(RuntimeError, match="no more data"):
        next(steps)
    has_ended.clear()
    steps = steps_of(fit)
    next(steps)
    steps.close()
    assert has_ended.is_set()


# Chapter 13: plans leave the sum on every rank


@pytest.fixture(scope="module")
def plans():
    cells = ["imports", "root", "tree", "ring", "halving"]
    return define("13_collectives.ipynb", *cells)


PLANS = ["through_root", "tree", "ring", "halving_doubling"]


@given(st.sampled_from(PLANS), st.integers(2, 12))
def test_a_plan_of_an_all_reduce_leaves_the_sum_on_every_rank(plans, name, ranks):
    if name == "halving_doubling":
        ranks = 2 ** min(ranks, 4)  # it is for powers of two
    held = [torch.full([ranks], 2.0**rank) for rank in range(ranks)]
    for step in plans[name](ranks):
        sent = [held[m.sender].tensor_split(m.parts)[m.part].clone() for m in step]
        for message, part in zip(step, sent, strict=True):
            into = held[message.receiver].tensor_split(message.parts)[message.part]
            into.copy_(into * message.adds + part)
    assert set(torch.cat(held).tolist()) == {2.0**ranks - 1}


# More on chapter 15: plans of a pipeline


@given(st.integers(1, 5), st.integers(1, 6), st.sampled_from(["gpipe", "1f1b"]))
def test_a_plan_of_a_pipeline_has_the_bubble_of_the_formula(stages, batches, name):
    functions = define("more/15_layers_in_parts.ipynb", "plans")
    plan = functions[f"plan_{name}"](stages, batches)
    lanes = pipelines.simulate(plan, {"F": 1.0, "B": 2.0})
    assert [len(lane) for lane in lanes] == [2 * batches] * stages
    bubble = (stages - 1) / (batches + stages - 1)
    assert pipelines.find_bubble(lanes) == pytest.approx(bubble)


# Chapter 16: returns of each observer, and how late gradients come


@given(st.lists(st.lists(st.integers(0, 9), min_size=1), min_size=1, max_size=4))
def test_the_returns_of_an_observer_have_nothing_of_the_others(episodes):
    together = rl_16.add_up(episodes)
    alone = [rl_16.add_up([rewards]) for rewards in episodes]
    assert together.tolist() == torch.cat(alone).tolist()
    assert together[-1] == episodes[-1][-1]


def test_a_parameter_server_counts_how_late_gradients_come():
    server = rpc_16.Server()
    version, before = server.get()
    gradients = [torch.ones_like(weights) for weights in before]
    for _ in range(3):
        newest, after = server.put_and_get(version, gradients, 1.0)
    assert (newest, server.staleness) == (3, [0, 1, 2])
    torch.testing.assert_close(after[0], before[0] - 3 * 0.1)
    assert server.describe().startswith("3 updates; gradients came 1.0 versions late")
