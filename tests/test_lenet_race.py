"""`tutorials/scripts/lenet_race.py`: faster variants of one and the same training."""

import dataclasses
import importlib.util
import os
import re
import struct
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import kit
from kit import recording

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "tutorials" / "scripts" / "lenet_race.py"
SMALL = ["--device=cpu", "--images=600", "--epochs=2", "--variants"]
#: Against hanging; it takes some ten seconds.
LIMIT = 150


@pytest.fixture(scope="module")
def race():
    spec = importlib.util.spec_from_file_location("lenet_race", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def small(race, monkeypatch):
    """Batches of 16: 40 images make two whole ones and a rest."""
    monkeypatch.setattr(race, "BATCH", 16)
    monkeypatch.setattr(race, "capture", record)
    monkeypatch.setattr(race, "EPOCHS_TO_WAKE", 2)
    return race


class Recorder(TorchDispatchMode):
    """Keep every operation with its tensors, as a CUDA graph keeps launches."""

    def __init__(self):
        super().__init__()
        self.done = []

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        assert function is not torch.ops.aten._local_scalar_dense.default, "it waits"
        result = function(*arguments, **(named or {}))
        self.done.append((function, arguments, named or {}, result))
        return result

    @torch.no_grad()
    def replay(self):
        """Do all of it again, to the same memory, and nothing that Python would do."""
        for function, arguments, named, result in self.done:
            again = tree_leaves(function(*arguments, **named))
            for old, new in zip(tree_leaves(result), again, strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def record(learner, train_set, learn):
    """Stand in for `capture`, where there is no GPU."""
    with Recorder() as recorder:
        learn()
    owner = weakref.ref(learn)

    def replay():
        assert owner(), "a graph has addresses only, and their memory is gone"
        recorder.replay()

    return replay


def make_images(count):
    random = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (count, 1, 28, 28), dtype=torch.uint8, generator=random)
    labels = torch.randint(10, (count,), generator=random)
    return kit.data.GreyImages(pixels, labels, tuple("ABCDEFGHIJ"))


def run(race, does, *, epochs=2, seed=3, lr=0.2, count=40):
    """Train by the script's parts; return the learner and the losses of each epoch."""
    torch.manual_seed(seed)
    learner = race.Learner(set(does), lr, "cpu")
    order = torch.Generator().manual_seed(seed)
    if "resident" in does:
        run_epoch = race.hold_images(learner, make_images(count), order)
    else:
        run_epoch = race.read_loader(learner, make_images(count), order, 0)
    return learner, [run_epoch() for _ in range(epochs)]


def are_equal(one, other):
    return all(map(torch.equal, one.weights, other.weights))


# the same training


def test_images_on_the_device_make_the_same_steps(small):
    source, losses = run(small, ["source"])
    resident, again = run(small, ["source", "resident"])
    assert are_equal(source, resident)
    assert losses == again
    assert [len(epoch) for epoch in losses] == [3, 3]  # the last, smaller batch counts
    assert losses[0] != losses[1]
    other, _ = run(small, ["source"], seed=4)
    assert not are_equal(source, other)


@pytest.mark.parametrize("more", [["fused"], ["channels_last"]])
def test_other_operations_come_to_the_same(small, more):
    resident, _ = run(small, ["resident"])
    variant, _ = run(small, ["resident", *more])
    for one, other in zip(resident.weights, variant.weights, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("before", [["fused"], ["fused", "bf16"]])
def test_a_recorded_epoch_trains_as_one_that_python_drives(small, before):
    eager, losses = run(small, ["resident", *before])
    graph, again = run(small, ["resident", *before, "graph"])
    assert are_equal(eager, graph)
    assert losses == again
    for weight, master, initial in zip(
        graph.weights, graph.masters, graph.initial, strict=True
    ):
        assert torch.equal(weight, master.to(weight.dtype))
        assert not torch.equal(weight, initial.to(weight.dtype))


def test_a_step_that_waits_for_the_device_cannot_be_recorded(small):
    learner = small.Learner({"resident"}, 0.2, "cpu")
    images, labels = make_images(16)[:]
    with Recorder() as recorder:
        learner.step(images, labels)
    assert len(recorder.done) > 30
    with pytest.raises(AssertionError, match="it waits"), Recorder():
        learner.step(images, labels).item()


def test_the_race_starts_from_the_weights_of_the_seed(small):
    for does in (["source"], ["resident", "fused", "bf16", "graph"]):
        learner, _ = run(small, does, epochs=0)
        torch.manual_seed(3)
        net = small.make_lenet()
        assert all(map(torch.equal, learner.masters, net.parameters()))
        for weight, master in zip(learner.weights, learner.masters, strict=True):
            assert torch.equal(weight, master.to(weight.dtype))


def test_updates_too_small_for_bfloat16_add_up(small):
    rate = 1e-4
    learner, _ = run(small, ["resident", "bf16"], epochs=20, lr=rate)
    exact, _ = run(small, ["resident"], epochs=20, lr=rate)
    assert {weight.dtype for weight in learner.weights} == {torch.bfloat16}
    for master, weight, initial in zip(
        learner.masters, exact.weights, learner.initial, strict=True
    ):
        moved, wanted = (end - initial for end in (master, weight))
        assert (moved - wanted).norm() < 0.1 * wanted.norm()


def test_each_epoch_counts_every_image_once(small):
    order = small.Shuffle(40, torch.Generator().manual_seed(1))
    first, second = list(order), list(order)
    assert sorted(first) == sorted(second) == list(range(40))
    assert first != second
    again = torch.Generator().manual_seed(1)
    assert torch.randperm(40, generator=again).tolist() == first


# what is asked for


def refuse(race, capsys, *words):
    with pytest.raises(SystemExit) as ended:
        race.read_arguments(list(words))
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_what_cannot_be_raced_is_refused(race, capsys):
    told = refuse(race, capsys, "--variants", "source", "warp")
    assert "warp" in told
    assert all(name in told.partition("choose from")[2] for name in race.LADDER)
    assert "3 or more" in refuse(race, capsys, "--seeds=2")
    assert "256 to 60000" in refuse(race, capsys, "--images=70000")
    assert "256 to 60000" in refuse(race, capsys, "--images=0")
    assert "whole number" in refuse(race, capsys, "--epochs=many")
    assert "neither cpu nor cuda" in refuse(race, capsys, "--device=abacus")
    assert "finds" in refuse(race, capsys, "--device=cuda:99")


def ask(race, variant, *words):
    return race.why_not(variant, race.read_arguments(["--device=cpu", *words]))


def test_what_the_device_cannot_do_is_left_out_with_what_it_can(race, monkeypatch):
    plain = dataclasses.replace(kit.this_machine(), instruction_sets=("avx2",))
    monkeypatch.setattr(kit, "this_machine", lambda: plain)
    assert "float32: --without bf16" in ask(race, "bf16")
    assert not ask(race, "bf16", "--images=2000")
    assert not ask(race, "fused")
    able = dataclasses.replace(plain, instruction_sets=("avx512_bf16",))
    monkeypatch.setattr(kit, "this_machine", lambda: able)
    assert not ask(race, "bf16")
    assert "--without graph" in ask(race, "graph")
    assert not ask(race, "channels_last", "--without", "graph")
    assert "NVIDIA" in ask(race, "search", "--without", "graph")

    arguments = race.read_arguments(["--device=cpu"])
    arguments.device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    for capability, can in (((7, 5), False), ((9, 0), True)):
        monkeypatch.setattr(
            torch.cuda, "get_device_capability", lambda device, c=capability: c
        )
        told = race.why_not("graph", arguments)
        assert told == "" if can else "Tesla T4 has no bfloat16" in told
        assert not race.why_not("fused", arguments)


def write_idx(path, array):
    """Write an IDX file: zeros, type, dimensions, sizes, then the bytes."""
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    path.write_bytes(header + array.tobytes())


def test_fashion_mnist_is_read_where_its_files_are(race, tmp_path, monkeypatch):
    monkeypatch.setenv("KIT_CACHE", str(tmp_path))
    raw = tmp_path / "FashionMNIST" / "raw"
    with pytest.raises(kit.data.DataError, match="unpack") as raised:
        race.load_images("fashion", 30)
    assert str(raw) in str(raised.value) and "--data glyphs" in str(raised.value)
    raw.mkdir(parents=True)
    pixels = np.arange(40 * 28 * 28, dtype=np.uint8).reshape(40, 28, 28)
    for part in ("train", "t10k"):
        write_idx(raw / f"{part}-images-idx3-ubyte", pixels)
        write_idx(raw / f"{part}-labels-idx1-ubyte", np.arange(40, dtype=np.uint8) % 10)
    train_set, test_set = race.load_images("fashion", 30)
    assert (len(train_set), len(test_set)) == (30, 5)
    assert np.array_equal(train_set.images[:, 0].numpy(), pixels[:30])
    assert train_set.classes[train_set[9][1]] == "Ankle boot"


def test_a_loss_that_is_lost_names_its_step(race, capsys, tidy):
    words = ["--lr=1e30", "--images=600", "--epochs=1", "--variants=source"]
    assert race.main(["--device=cpu", *words]) == 1
    told = capsys.readouterr().err
    assert re.search(r"source: the loss is (nan|inf) at step [23] of epoch 1", told)
    assert "lower rate than --lr 1e+30" in told


# the whole script: whether it races at all takes some ten seconds


def whole(test):
    """Mark a test of the whole script."""
    return pytest.mark.nightly(pytest.mark.timeout(2 * LIMIT)(test))


@pytest.fixture(scope="module")
def raced(tmp_path_factory):
    """What a small race printed, and the recording that it wrote."""
    path = tmp_path_factory.mktemp("race") / "recordings" / "lenet_race__here__now.json"
    words = [*SMALL, "source", "resident", "graph", "--json", str(path)]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *words],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, path


@whole
def test_a_small_race_says_its_conditions_and_results(raced):
    told, _ = raced
    assert kit.this_machine().name in told
    for words in (f"PyTorch {torch.__version__} on cpu", "float32", "seeds 0 to 2"):
        assert words in told
    assert "600 images of glyphs to train on, 100 to test with" in told
    assert "graph is left out: CUDA graphs need an NVIDIA GPU" in told
    number = r"[\d,.]+"
    interval = rf"{number} \[{number}, {number}\]"
    assert re.search(rf"^source +{interval} +1 +{interval}$", told, re.MULTILINE)
    row = rf"^resident +{interval} +{number} × \[.+?\] +{interval} +\+0 .* yes$"
    assert re.search(row, told, re.MULTILINE)


@whole
def test_what_was_measured_can_be_shown_by_a_chapter(raced):
    told, path = raced
    trials = kit.recorded("lenet_race/train", folder=path.parent)
    assert [trial.knobs["variant"] for trial in trials] == ["source", "resident"]
    for trial in trials:
        assert trial.whole_runs
        assert trial.block_items == [1200] * 3  # 2 epochs, whichever the seed
        assert len(trial.last_values("accuracy")) == 3
        seconds = 600 / trial.items_per_second
        assert f"{1000 * seconds:,.1f} ms per epoch" in told
    source, resident = trials
    assert source.metrics["loss"][1::2] == resident.metrics["loss"][1::2]
    assert source.metrics["loss"][1] > source.metrics["loss"][3]  # it learns
    speed, accuracy = recording.read(path).comparisons
    assert speed.of == "items_per_second"
    assert accuracy.ratio.verdict == "same"
    assert accuracy.within == 0.01


@whole
def test_no_speed_is_claimed_at_another_accuracy(race, raced):
    source, resident = kit.load(raced[1])
    fast = [seconds / 100 for seconds in source.block_seconds]
    faster = dataclasses.replace(resident, block_seconds=fast)
    arguments = race.read_arguments(["--device=cpu", "--images=600"])
    table = race.make_table({"source": source, "resident": faster}, arguments)
    assert re.search(r"resident: [\d.,]+ ms per epoch, 100 × .* as fast as", table)
    worse = [x - 0.1 for x in resident.metrics["accuracy"]]
    wrong = dataclasses.replace(faster, metrics={**resident.metrics, "accuracy": worse})
    table = race.make_table({"source": source, "resident": wrong}, arguments)
    assert re.search(r"^resident .* not claimed .* not equal$", table, re.MULTILINE)
    assert "100 ×" not in table
    assert "No variant is faster at equal accuracy" in table
