"""What a reader takes home runs alone, without the kit: on a CPU here."""

import contextlib
import gzip
import importlib
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from far_store import FarStore
from project import TUTORIALS
from torch.utils.data import DataLoader

SCRIPTS = {path.stem: path for path in sorted((TUTORIALS / "take_home").glob("*.py"))}
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0"}
TWO_PROCESSES = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def run(name, folder, *words, **more):
    """Run a script in an empty folder: under torchrun if that is what it asks for."""
    script = SCRIPTS[name]
    launcher = TWO_PROCESSES if "torchrun" in script.read_text() else []
    command = [sys.executable, *launcher, str(script), *map(str, words)]
    variables = os.environ | LOOPBACK | {"OMP_NUM_THREADS": "1"} | more
    # What a compiler leaves goes with pytest's folder, and serves the next test.
    temporary = folder.parent / "temporary"
    temporary.mkdir(exist_ok=True)
    variables["TMPDIR"] = str(temporary)
    return subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True
    )


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name[:2] != "00"])
def test_a_script_to_take_home_runs_alone(name, tmp_path):
    assert not re.search(r"^\s*(import|from) kit\b", SCRIPTS[name].read_text(), re.M)
    done = run(name, tmp_path, "--steps", 4)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_price_of_a_call_is_given_for_each_line_and_then_the_knee(tmp_path):
    done = run("01_price_of_a_call", tmp_path, "--steps", 50)
    lines = ["x + x", "x + 1", "x.add_(x)", "x.item()"]
    for line in lines:
        (price,) = re.findall(rf"^{re.escape(line)} +([\d.]+) µs", done.stdout, re.M)
        assert float(price) > 0
    (knee,) = re.findall(r"about ([\d,]+) numbers", done.stdout)
    assert int(knee.replace(",", "")) >= 64


def test_the_all_reduces_of_two_ranks_predict_their_gradients(tmp_path):
    done = run("13_time_all_reduce", tmp_path, "--steps", 4, "--parameters", 10**8)
    rows = re.findall(r"([\d.]+) ms, predicted +([\d.]+) ms, bus band", done.stdout)
    assert len(rows) == 7
    assert float(rows[-1][1]) == pytest.approx(float(rows[-1][0]), rel=0.5)
    assert re.search(r"2 ranks: α = -?\d+ µs, β = [\d.]+ GB/s", done.stdout)
    found = re.findall(r"(\d\d)-bit gradients: ([\d.]+) ms", done.stdout)
    assert [bits for bits, _ in found] == ["32", "16"]
    assert float(found[0][1]) > float(found[1][1]) > 0


def test_a_profile_has_a_table_the_labels_and_a_trace(tmp_path):
    done = run("02_profile_some_steps", tmp_path, "--steps", 12)
    assert "# of Calls" in done.stdout
    for label in ("load", "forward", "backward", "update"):
        assert re.search(rf"^{label}: [\d.]+ ms per step$", done.stdout, re.M)
    trace = json.loads((tmp_path / "runs" / "step12.json").read_text())
    names = [event["name"] for event in trace["traceEvents"]]
    assert names.count("forward") == 3


def test_chapter_03s_script_reads_a_trace_of_a_gpu(tmp_path, monkeypatch, capsys):
    script = runpy.run_path(str(SCRIPTS["03_trace_some_steps"]))
    recorded = gzip.decompress((TUTORIALS / "traces" / "item.json.gz").read_bytes())
    renamed = recorded.replace(b'"step ', b'"ProfilerStep#')

    class Profiler:
        def export_chrome_trace(self, path):
            (tmp_path / path).write_bytes(gzip.compress(renamed))

    monkeypatch.chdir(tmp_path)
    script["describe"](Profiler())
    assert capsys.readouterr().out.splitlines() == [
        "Python: 27.8 ms a step, 0% in the loader",
        "GPU: a kernel runs 89% of the time, from the first to the last",
        "470 kernels a step, 50.5 µs each",
        "waits for the GPU: 1 a step",
    ]
    kernels = [(0, 10), (5, 10), (20, 5)]  # begin and length; the first two overlap
    events = [{"ts": begin, "dur": length} for begin, length in kernels]
    assert script["measure"](events) == (20, 25)


def test_the_script_of_chapter_09_names_a_format_that_it_has_measured(tmp_path):
    shown = run("09_which_format", tmp_path, "--steps", 2).stdout
    rows = [line.split() for line in shown.splitlines()]
    errors = {
        row[0]: float(row[2])
        for row in rows
        if row[0].startswith(("f", "b", "T")) and len(row) == 3 and row[0] != "format"
    }
    assert errors["float32"] < errors["float16"] < errors["bfloat16"]
    advice = re.search(r"Advice: compute large products in (\w+)", shown)
    assert advice[1] in errors


@pytest.mark.parametrize("name", ["10_train_bf16", "10_train_fp16"])
def test_mixed_precision_learns_and_keeps_its_weights_in_32_bits(name, tmp_path):
    done = run(name, tmp_path, "--steps", 30)
    assert done.returncode == 0, done.stderr
    first, *_, last = re.findall(r"loss (?:on new data: )?([\d.]+)", done.stdout)
    assert float(last) < float(first) / 2
    assert "samples/s" in done.stdout
    saved = torch.load(tmp_path / "checkpoint.pt")
    assert {weight.dtype for weight in saved["net"].values()} == {torch.float32}
    assert ("scaler" in saved) == (name == "10_train_fp16")
    assert saved.get("scaler", {"scale": 1})["scale"] > 0


def test_the_compiled_loop_of_chapter_08_learns_and_says_what_compiling_took(tmp_path):
    done = run("08_train_fast", tmp_path, "--steps", 200, "--plain")
    losses = [float(loss) for loss in re.findall(r"mean loss (\S+)", done.stdout)]
    assert len(losses) == 2
    assert losses[1] < losses[0]
    assert re.search(r"first step: [\d.]+ s", done.stdout)


def test_the_script_of_chapter_14_sends_as_much_less_as_it_says(tmp_path):
    sent = {}
    for option in ("--hook=none", "--hook=bf16", "--hook=powersgd", "--every=8"):
        done = run("14_send_less", tmp_path, option, "--steps", 8)
        assert done.returncode == 0, done.stderr
        sent[option] = float(re.search(r"([\d.]+) MB", done.stdout)[1])
    plain = sent["--hook=none"]
    assert sent["--hook=bf16"] == pytest.approx(plain / 2, rel=0.01)
    assert sent["--every=8"] == pytest.approx(plain / 8, rel=0.01)
    assert 0 < sent["--hook=powersgd"] < plain / 50


def test_the_script_of_chapter_04_reads_bytes_from_a_folder_of_yours(tmp_path):
    script = runpy.run_path(str(SCRIPTS["04_load_photos"]))
    script["draw_photos"](tmp_path / "mine", 32)
    image, label = script["Photos"](tmp_path / "mine")[31]
    assert (image.dtype, tuple(image.shape), label) == (torch.uint8, (3, 64, 64), 1)
    done = run("04_load_photos", tmp_path, tmp_path / "mine", "--steps", 6)
    assert done.returncode == 0, done.stderr
    step, loading = re.search(
        r"a step: ([\d.]+) ms, loading: ([\d.]+) ms of it", done.stdout
    ).groups()
    assert 0 <= float(loading) < float(step)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.fixture
def shards_05(tmp_path, monkeypatch):
    """Chapter 05's class, as the chapter imports it, and eight shards of 64 samples."""
    monkeypatch.syspath_prepend(TUTORIALS)
    urls = [str(tmp_path / f"{shard}.txt") for shard in range(8)]
    for shard, url in enumerate(urls):
        numbers = range(64 * shard, 64 * (shard + 1))
        Path(url).write_text(" ".join(map(str, numbers)))
    return importlib.import_module("shards_05").Shards, urls


def read_numbers(data):
    yield from map(int, data.split())


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_each_sample_of_shards_is_read_once_in_each_epoch(
    method, shards_05, monkeypatch
):
    make_set, urls = shards_05
    monkeypatch.setenv("WORLD_SIZE", "2")
    orders = []
    for rank in "01":
        monkeypatch.setenv("RANK", rank)
        data = make_set(urls, read_numbers, room=100)
        how = {"num_workers": 3, "persistent_workers": True}
        loader = DataLoader(data, None, multiprocessing_context=method, **how)
        for epoch in range(2):
            data.epoch.fill_(epoch)
            orders.append((epoch, [*loader]))
        del loader
    epochs = [[], []]
    for epoch, numbers in orders:
        epochs[epoch] += numbers
    assert sorted(epochs[0]) == sorted(epochs[1]) == [*range(512)]
    assert epochs[0] != epochs[1], "persistent workers do not see the epoch"


def test_workers_without_a_shard_read_nothing(shards_05):
    make_set, urls = shards_05
    loader = DataLoader(make_set(urls[:2], read_numbers), None, num_workers=3)
    assert len([*loader]) == 128


def test_shards_are_read_from_s3_too(tmp_path):
    script = runpy.run_path(str(SCRIPTS["05_read_shards"]))
    script["make_shards"](tmp_path)
    with contextlib.closing(FarStore()) as store:
        for path in sorted(tmp_path.glob("*.pt"))[:8]:
            store.put(f"data/shards/{path.name}", path.read_bytes())
        keys = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
        words = "--url", "s3://data/shards", "--steps", 12
        done = run(
            "05_read_shards", tmp_path, *words, AWS_ENDPOINT_URL=store.url, **keys
        )
    assert done.returncode == 0, done.stderr
    assert "epoch 0: 512 samples" in done.stdout
    assert "epoch 1: 256 samples" in done.stdout


def test_the_finder_of_chapter_06_names_a_size_that_it_has_tried(tmp_path):
    done = run("06_find_batch_size", tmp_path, "--steps", 2, "--most", 64)
    assert done.returncode == 0, done.stderr
    tried = re.findall(r"^ *(\d+) images: +([\d,]+) a second", done.stdout, re.M)
    sizes = [int(size) for size, _ in tried]
    assert sizes == [8 * 2**place for place in range(len(sizes))]
    assert all(int(rate.replace(",", "")) > 0 for _, rate in tried)
    enough = int(re.search(r"^enough: (\d+)$", done.stdout, re.M)[1])
    assert enough in sizes


def test_the_script_of_chapter_07_needs_less_in_parts_and_checkpointed(tmp_path):
    peaks = {}
    for options in (("--parts=1",), ("--parts=4", "--checkpoint")):
        done = run("07_fit_in_memory", tmp_path, *options, "--steps", 4)
        assert done.returncode == 0, done.stderr
        peaks[options[0]] = float(re.search(r"at most (\d+) MB", done.stdout)[1])
    assert 0 < peaks["--parts=4"] < peaks["--parts=1"]


def test_the_script_of_chapter_17_goes_on_with_the_next_step(tmp_path):
    words = ["--folder=saved", "--save-every=4", "--log-every=1", "--steps=8"]
    runs = []
    for _ in range(2):
        done = run("17_train_resumable", tmp_path, *words)
        assert done.returncode == 0, done.stderr
        runs.append(dict(re.findall(r"step (\d+) loss ([\d.]+) ranks 2", done.stdout)))
        (tmp_path / "saved" / "step-00000008.pt").unlink()
        (tmp_path / "saved" / "step-00000012.part").touch()  # a save that has died
    whole, resumed = runs
    assert [*whole] == [str(step) for step in range(8)]
    assert [*resumed] == ["4", "5", "6", "7"]
    assert resumed.items() <= whole.items()


#: In place of Slurm's programs: two machines that are this one.
SLURM = {"scontrol": "echo 127.0.0.1", "srun": '"$@" & first=$!; "$@" && wait $first'}


def test_the_slurm_script_of_chapter_17_trains_on_two_machines(tmp_path):
    for name, line in SLURM.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{line}\n")
        (tmp_path / name).chmod(0o755)
    home = TUTORIALS / "take_home"
    job = (home / "17_train.sbatch").read_text()
    job = job.replace("/shared", str(tmp_path)).replace(".py --f", ".py --steps=4 --f")
    variables = os.environ | LOOPBACK | {"OMP_NUM_THREADS": "1"}
    variables["PATH"] = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    variables["SLURM_JOB_ID"] = str(os.getpid())
    variables |= {"SLURM_JOB_NODELIST": "here[1-2]", "SLURM_NNODES": "2"}
    variables["SLURM_GPUS_ON_NODE"] = "1"
    done = subprocess.run(
        ["bash", "-e", "-c", job],
        cwd=home,
        env=variables,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"GFLOP/s: .* slowest rank \d", done.stdout)
    assert done.stdout.count("each rank sends") == 3
    assert re.search(r"step 0 loss [\d.]+ ranks 2", done.stdout)
    assert (tmp_path / "letters" / "step-00000004.pt").exists()


def test_two_processes_of_chapter_11_learn_what_one_learns(tmp_path, monkeypatch):
    losses = []
    for processes in (1, 2):
        launcher = [*TWO_PROCESSES[:-1], f"--nproc-per-node={processes}"]
        monkeypatch.setitem(globals(), "TWO_PROCESSES", launcher)
        done = run("11_data_parallel", tmp_path, "--steps", 20)
        assert done.returncode == 0, done.stderr
        found = re.search(rf"^{processes} ranks? .*: ([\d.]+)$", done.stdout, re.M)
        losses.append(float(found[1]))
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_the_script_of_chapter_12_learns_the_same_in_one_process_and_in_two(tmp_path):
    """And where one process began, two go on."""
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    straight.mkdir()
    resumed.mkdir()
    one = [word.replace("=2", "=1") for word in TWO_PROCESSES]
    command = [sys.executable, *one, str(SCRIPTS["12_train_ddp"]), "--epochs=1"]
    subprocess.run(command, cwd=resumed, env=os.environ | LOOPBACK, check=True)
    accuracies = []
    for folder, epochs in ((straight, ["0", "1"]), (resumed, ["1"])):
        done = run("12_train_ddp", folder, "--epochs=2")
        assert done.returncode == 0, done.stderr
        assert re.findall(r"^epoch (\d+): loss", done.stdout, re.M) == epochs
        accuracies.append(
            float(re.search(r"processes: 2, accuracy (\S+)", done.stdout)[1])
        )
    assert accuracies[0] > 0.5
    assert accuracies[1] == pytest.approx(accuracies[0], abs=0.01)
    saved = torch.load(straight / "checkpoint.pt")
    assert saved["epoch"] == 1
    assert not any(name.startswith("module.") for name in saved["net"])


def test_the_game_of_chapter_16_is_played_over_rpc_and_says_how_it_ended(tmp_path):
    done = run("16_cartpole_rpc", tmp_path, "--steps", 12)
    assert done.returncode == 0, done.stderr
    line = r"^round 10: running mean (\d+)$"
    (mean,) = re.findall(line, done.stdout, re.M)
    assert 0 < int(mean) < 475
    last = done.stdout.splitlines()[-1]
    assert re.fullmatch(r"not solved, \d+ of 475, after 12 rounds; observers: 1", last)


def test_the_script_of_chapter_15_goes_on_from_its_checkpoint_on_one_rank(tmp_path):
    first = run("15_train_sharded", tmp_path, "--steps", 30)
    assert first.returncode == 0, first.stderr
    held = re.search(r"rank 0 holds ([\d,]+) of ([\d,]+) weights", first.stdout)
    mine, whole = [int(number.replace(",", "")) for number in held.groups()]
    assert mine == pytest.approx(whole / 2, rel=0.01)
    (loss,) = re.findall(r"step 30: loss ([\d.]+)", first.stdout)
    assert float(loss) < 0.6  # of targets whose mean square is 1
    one = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
    command = [sys.executable, *one, str(SCRIPTS["15_train_sharded"]), "--steps", "1"]
    variables = os.environ | LOOPBACK | {"OMP_NUM_THREADS": "1"}
    second = subprocess.run(
        command, cwd=tmp_path, env=variables, capture_output=True, text=True
    )
    assert second.returncode == 0, second.stderr
    assert f"rank 0 holds {whole:,} of {whole:,} weights" in second.stdout
    (later,) = re.findall(r"step 31: loss ([\d.]+)", second.stdout)
    assert float(later) < 0.6


def test_the_script_of_chapter_18_bounds_a_step_by_the_figures_it_is_given(tmp_path):
    figures = "--tflops", 0.001, "--gbs", 1000
    done = run("18_bound_your_step", tmp_path, "--steps", 2, *figures)
    assert done.returncode == 0, done.stderr
    flops = 5 * 2 * 256 * 1024 * 4096  # inputs need no gradients
    assert f"{flops:,} FLOP at 0.001 TFLOP/s: at least {flops / 1e6:.3f} ms" in (
        done.stdout
    )
    moved, least = re.search(r"([\d,]+) bytes .* ([\d.]+) ms", done.stdout).groups()
    assert float(least) == pytest.approx(int(moved.replace(",", "")) / 1e9, abs=1e-3)
    took = float(re.search(r"a step takes ([\d.]+) ms", done.stdout)[1])
    times = float(re.search(r"([\d.]+) times the largest", done.stdout)[1])
    assert times == pytest.approx(took / flops * 1e6, abs=0.06)


def test_the_fast_training_of_chapter_19_tells_held_out_photos_apart(tmp_path):
    done = run("19_train_fast", tmp_path, "--steps", 60)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"^step (\d+): mean loss ([\d.]+), ", done.stdout, re.M)
    assert [step for step, _ in found] == ["50", "60"]
    assert float(found[1][1]) < 0.69  # a guess between two classes
    right = re.search(r"^right on held-out photos: (\d+)%$", done.stdout, re.M)[1]
    assert int(right) >= 90
