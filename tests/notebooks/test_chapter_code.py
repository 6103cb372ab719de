"""Code that readers take from chapters does what the chapter says of it."""

import ast
import itertools
import math
import threading

import nbformat
import pipelines
import pytest
import torch
from costs import LINKS
from helpers import wait_until
from hypothesis import given, strategies as st
from project import TUTORIALS


def define(name, *cells):
    """Return what cells of a chapter define, without what they run or measure."""
    names = {"__name__": "__main__"}
    kinds = ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom
    for cell in nbformat.read(TUTORIALS / name, as_version=4).cells:
        body = ast.parse(cell.source).body if cell.id in cells else []
        kept = [x for x in body if isinstance(x, kinds)]
        exec(compile(ast.Module(kept, []), name, "exec"), names)
    return names


# More on chapter 00: a trainer's callback becomes a generator


@pytest.fixture
def steps_of(tidy):
    before = {*threading.enumerate()}
    yield define("more/00_trainers.ipynb", "imports", "recipe")["steps_of"]
    wait_until(lambda: {*threading.enumerate()} <= before, 5)


def test_the_trainers_thread_ends_and_its_error_reaches_the_reader(steps_of):
    unwound = threading.Event()

    def fit(on_step):
        try:
            for items in (3, 4, 5):
                on_step(items)
            raise RuntimeError("no more data")
        finally:
            unwound.set()

    steps = steps_of(fit)
    assert [next(steps) for _ in range(3)] == [3, 4, 5]
    with pytest.raises(RuntimeError, match="no more data"):
        next(steps)
    unwound.clear()
    steps = steps_of(fit)
    next(steps)
    steps.close()
    assert unwound.wait(5), "closing must end the trainer"


def test_trainer_and_reader_take_turns_on_equal_terms(steps_of):
    events, threads = [], torch.get_num_threads()

    def fit(on_step):
        for number in range(3):
            events.append((number, torch.get_num_threads()))
            on_step(1)
        return 7  # is no step

    for number, _ in enumerate(steps_of(fit)):
        events.append(f"{number} is seen")
    wanted = [((number, threads), f"{number} is seen") for number in range(3)]
    assert events == [*itertools.chain(*wanted)]


# Chapter 13: plans leave the sum, and take what the chapter's table says


CELLS = ["imports", "root", "tree", "ring", "halving", "predict"]


@pytest.fixture(scope="module")
def chapter():
    return define("13_collectives.ipynb", *CELLS)


PLANS = st.sampled_from(["through_root", "tree", "ring", "halving_doubling"])


@given(PLANS, st.integers(2, 12), st.floats(1e3, 1e9))
def test_a_plan_leaves_the_sum_and_takes_what_the_table_says(chapter, name, n, size):
    if name == "halving_doubling":
        n = 2 ** min(n, 4)  # it is for powers of two
    plan, link = chapter[name], LINKS["InfiniBand NDR"]
    alpha, whole = link.latency_seconds, size / link.bytes_per_second
    doublings = math.ceil(math.log2(n))
    table = {
        "through_root": 2 * (n - 1) * (alpha + whole),
        "tree": 2 * doublings * (alpha + whole),
        "ring": 2 * (n - 1) * (alpha + whole / n),
        "halving_doubling": 2 * doublings * alpha + 2 * (n - 1) / n * whole,
    }
    predicted = chapter["predict_all_reduce"](plan, n, size, link)
    assert predicted == pytest.approx(table[name])
    have = [torch.full([n], 2.0**rank) for rank in range(n)]
    for step in plan(n):
        sent = [have[m.sender].tensor_split(m.parts)[m.part].clone() for m in step]
        for m, part in zip(step, sent, strict=True):
            into = have[m.receiver].tensor_split(m.parts)[m.part]
            into.copy_(into * m.adds + part)
    assert {*torch.cat(have).tolist()} == {2.0**n - 1}


# Chapter 15: plans of a pipeline, and what autograd keeps


@given(st.integers(1, 5), st.integers(1, 6), st.sampled_from(["gpipe", "1f1b"]))
def test_a_plan_of_a_pipeline_has_the_bubble_of_the_formula(p, m, name):
    names = define("15_model_parallel.ipynb", "plans")
    lanes = pipelines.simulate(names[f"plan_{name}"](p, m), {"F": 1.0, "B": 2.0})
    assert [len(lane) for lane in lanes] == [2 * m] * p
    assert pipelines.find_bubble(lanes) == pytest.approx((p - 1) / (m + p - 1))


def test_a_pipeline_plan_that_deadlocks_does_not_hang_the_simulation():
    plan = [["0F0", "0B0", "0F1", "0B1"], ["1F1", "1B1", "1F0", "1B0"]]
    lanes = pipelines.simulate(plan, {"F": 1.0, "B": 1.0})
    assert [len(lane) for lane in lanes] == [1, 0]


def test_what_autograd_keeps_is_counted_while_it_is_kept():
    layer, x = torch.nn.Linear(10, 10), torch.zeros(5, 10)

    def run(layer):
        for _ in range(3):
            layer(x).exp().sum().backward()

    assert pipelines.count_held(run, layer) == 2 * x.nbytes  # the inputs of both
