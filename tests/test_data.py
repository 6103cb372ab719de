"""Photos are real files, the same everywhere, never half-done; data sets read them."""

from __future__ import annotations

import collections
import doctest
import errno
import hashlib
import math
import os
import pathlib
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import PIL.Image
import pytest
import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from kit import data
from kit.data import datasets, drawing, storage

REPOSITORY = pathlib.Path(__file__).parents[1]
# Changed pictures need a new drawing.VERSION, or readers keep the old ones.
PIXELS_SHA256 = "2b3d9758e25617dc840409fe336ab811ab019c903663d048548c8ee5dd2c711b"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Draw 40 photos that the tests only read."""
    return data.photos(40, folder=tmp_path_factory.mktemp("drawn"))


@pytest.fixture
def cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Give the kit an empty cache folder."""
    monkeypatch.setenv("KIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def list_names(folder: pathlib.Path) -> list[str]:
    """List what is in a folder, hidden names too; nothing where there is none."""
    return sorted(os.listdir(folder)) if folder.exists() else []


def copy_with_corrupt(drawn: pathlib.Path, folder: pathlib.Path, index: int) -> str:
    """Link the drawn photos into `folder` with one cut in half; return its path."""
    for path in drawn.rglob("*.jpg"):
        link = folder / path.relative_to(drawn)
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(path)
    victim = pathlib.Path(data.PhotoDataset(folder).samples[index][0])
    half = victim.read_bytes()[: victim.stat().st_size // 2]
    victim.unlink()
    victim.write_bytes(half)
    return str(victim)


def run_python(code: str, **environment: str) -> subprocess.Popen[str]:
    """Start a Python process in the repository."""
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=REPOSITORY,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# The photos


def test_photos_are_forty_jpegs_of_ten_balanced_classes(drawn: pathlib.Path) -> None:
    paths = sorted(drawn.rglob("*.*"))
    counts = collections.Counter(path.parent.name for path in paths)
    assert counts == dict.fromkeys(data.CLASSES, 4)
    assert 40_000 <= np.mean([path.stat().st_size for path in paths]) <= 80_000
    for path in paths:
        with PIL.Image.open(path) as image:
            assert (image.format, image.mode) == ("JPEG", "RGB")
            assert image.size == (data.SIZE, data.SIZE)


def test_pixels_are_the_same_on_every_machine() -> None:
    digest = hashlib.sha256()
    for index in range(20):
        pixels, label = data.draw_photo(index)
        assert pixels.shape == (data.SIZE, data.SIZE, 3)
        assert pixels.dtype == np.uint8
        assert label == index % 10
        digest.update(pixels.tobytes())
    assert digest.hexdigest() == PIXELS_SHA256


def test_files_show_what_draw_photo_draws(drawn: pathlib.Path) -> None:
    for index in (0, 17, 39):
        pixels, label = data.draw_photo(index)
        path = drawn / data.CLASSES[label] / f"{index:06d}.jpg"
        decoded = np.asarray(PIL.Image.open(path)).astype(int)
        assert np.abs(decoded - pixels).mean() < 12


@pytest.mark.parametrize("label", range(10), ids=data.CLASSES)
def test_every_shape_stands_out_and_lies_inside(label: int) -> None:
    for index in range(label, label + 50, 10):
        random = np.random.RandomState(index)
        turn = random.randint(0, 1000, 2) - 500
        cosine, sine = turn / np.hypot(*turn)
        y, x = np.mgrid[:400, :400] - 200

        def along(u: int, v: int, x=x, y=y, c=cosine, s=sine) -> np.ndarray:
            reach = x * (u * c - v * s) + y * (u * s + v * c)
            return (reach * 8 / 1024).astype(np.int16)

        distance = drawing._measure_distance(data.CLASSES[label], along, 130 * 8)
        inside = distance < 0
        assert 0.03 < inside.mean() < 0.4
        # The middle of a photo is at least 145 pixels from its sides.
        assert max(np.abs(x[inside]).max(), np.abs(y[inside]).max()) <= 145


def test_a_second_call_does_not_draw(
    cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = data.photos(12)
    written = {path: path.stat().st_mtime_ns for path in first.rglob("*")}
    monkeypatch.setattr(storage, "draw_photo", None)
    assert data.photos(12) == first
    assert {path: path.stat().st_mtime_ns for path in first.rglob("*")} == written
    assert list_names(cache) == [first.name]


def test_another_n_lies_in_another_folder(cache: pathlib.Path) -> None:
    ten, eleven = data.photos(10), data.photos(np.int64(11))
    assert (ten.parent, eleven.parent) == (cache, cache)
    assert len(list(ten.rglob("*.jpg"))) == 10
    assert len(list(eleven.rglob("*.jpg"))) == 11


def test_folder_replaces_the_cache(cache: pathlib.Path, tmp_path: pathlib.Path) -> None:
    assert data.photos(10, folder=str(tmp_path / "here")).parent == tmp_path / "here"
    assert not cache.exists()


@pytest.mark.parametrize("n", [0, 9, -1])
def test_too_few_photos_for_the_classes(cache: pathlib.Path, n: int) -> None:
    with pytest.raises(ValueError, match=rf"photos\(n={n}\)"):
        data.photos(n)
    assert not cache.exists()


def test_progress_is_one_plain_line_where_it_takes_long(
    cache: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data.photos(10)
    assert capsys.readouterr().err == ""
    pretended = iter(range(1000))  # a second for each photo
    monkeypatch.setattr(storage.time, "monotonic", lambda: next(pretended))
    data.photos(100)
    assert capsys.readouterr().err == "drawing 100 photos (once; about 68 s)\n"


def test_progress_rewrites_its_line_in_a_terminal(
    cache: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pretended = iter(range(1000))
    monkeypatch.setattr(storage.time, "monotonic", lambda: next(pretended))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    data.photos(100)
    lines = capsys.readouterr().err.split("\r")
    assert [re.findall("about (.*) s", line) for line in lines[:3]] == [
        ["68"],
        ["36"],
        ["4"],
    ]
    assert lines[3] == "\n"


# Nothing half-done


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_a_failure_in_the_middle_leaves_nothing(
    cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    draw_photo = storage.draw_photo

    def fail_late(index: int) -> tuple[np.ndarray, int]:
        if index == 25:
            raise error
        return draw_photo(index)

    monkeypatch.setattr(storage, "draw_photo", fail_late)
    with pytest.raises(error):
        data.photos(40)
    assert list_names(cache) == []
    monkeypatch.setattr(storage, "draw_photo", draw_photo)
    assert len(list(data.photos(40).rglob("*.jpg"))) == 40


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT to send")
def test_an_interrupt_leaves_nothing(cache: pathlib.Path) -> None:
    code = "import kit.data; kit.data.photos(100_000)"
    process = run_python(code, KIT_CACHE=str(cache))
    patience = time.monotonic() + 60
    while not list(cache.glob("*/*/*.jpg")) and time.monotonic() < patience:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
    assert list_names(cache) == []


def test_full_disk(cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_bytes = pathlib.Path.write_bytes

    def fill(path: pathlib.Path, content: bytes) -> int:
        if path.name == "000025.jpg":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return write_bytes(path, content)

    monkeypatch.setattr(pathlib.Path, "write_bytes", fill)
    with pytest.raises(data.DataError) as raised:
        data.photos(40)
    message = str(raised.value)
    assert str(cache) in message
    assert os.strerror(errno.ENOSPC) in message
    assert "KIT_CACHE=" in message
    assert message.count("\n") < 6
    assert list_names(cache) == []


@pytest.mark.parametrize("name", ["mkdir", "replace"])
def test_read_only_cache(
    cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        patch.setattr(os, name, refuse)
        with pytest.raises(data.DataError, match=os.strerror(errno.EROFS)) as raised:
            data.photos(10)
    assert str(cache) in str(raised.value)
    assert "KIT_CACHE=" in str(raised.value)
    assert list_names(cache) == []


def test_cache_that_is_a_file(cache: pathlib.Path) -> None:
    cache.write_text("not a folder")
    with pytest.raises(data.DataError, match="KIT_CACHE="):
        data.photos(10)
    assert cache.read_text() == "not a folder"


def test_two_threads_at_once(
    cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both_have_drawn = threading.Barrier(2, timeout=60)
    draw_files = storage._draw_files

    def draw_and_meet(n: int, folder: pathlib.Path) -> None:
        draw_files(n, folder)
        both_have_drawn.wait()

    monkeypatch.setattr(storage, "_draw_files", draw_and_meet)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(data.photos, [20, 20])
    assert first == second
    assert len(list(first.rglob("*.jpg"))) == 20
    assert list_names(cache) == [first.name]


def test_two_processes_at_once(cache: pathlib.Path) -> None:
    code = "import kit.data; print(kit.data.photos(40))"
    processes = [run_python(code, KIT_CACHE=str(cache)) for _ in range(2)]
    for process in processes:
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        place = pathlib.Path(output.strip())
    assert len(list(place.rglob("*.jpg"))) == 40
    assert list_names(cache) == [place.name]


# The cache folder


def test_cache_folder_follows_the_platform(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setattr(pathlib.Path, "home", lambda: tmp_path)
    for name in ("KIT_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    expected = {
        "linux": ".cache",
        "darwin": "Library/Caches",
        "win32": "AppData/Local",
    }
    for platform, base in expected.items():
        monkeypatch.setattr(sys, "platform", platform)
        assert data.cache_folder() == tmp_path / base / "training-speed-kit"
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert data.cache_folder() == tmp_path / "local" / "training-speed-kit"
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert data.cache_folder() == tmp_path / "xdg" / "training-speed-kit"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert data.cache_folder() == tmp_path / ".cache" / "training-speed-kit"


def test_kit_cache_names_the_folder_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setenv("KIT_CACHE", str(tmp_path))
    assert data.cache_folder() == tmp_path
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KIT_CACHE", "relative")
    assert data.cache_folder() == tmp_path / "relative"


def test_cache_folder_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> pathlib.Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(pathlib.Path, "home", fail)
    monkeypatch.delenv("KIT_CACHE", raising=False)
    with pytest.raises(data.DataError, match="KIT_CACHE="):
        data.cache_folder()


# The data set


def test_dataset_agrees_with_image_folder(drawn: pathlib.Path) -> None:
    dataset, reference = data.PhotoDataset(drawn), ImageFolder(drawn)
    assert dataset.classes == reference.classes == list(data.CLASSES)
    assert dataset.samples == reference.samples
    assert len(dataset) == 40
    image, label = dataset[21]
    assert image.dtype == torch.uint8
    expected = np.asarray(reference[21][0]).transpose(2, 0, 1)
    assert (image.shape, label) == ((3, 400, 400), reference[21][1])
    assert np.array_equal(image.numpy(), expected)


def test_dataset_draws_its_own(
    cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch, drawn: pathlib.Path
) -> None:
    monkeypatch.setattr(datasets, "photos", lambda: drawn)
    assert len(data.PhotoDataset()) == 40


def test_dataset_ends_when_it_is_walked_through(drawn: pathlib.Path) -> None:
    dataset = data.PhotoDataset(drawn, transform=lambda image: image.mode)
    assert {mode for mode, _ in dataset} == {"RGB"}


def test_dataset_reads_any_images_as_rgb_and_skips_hidden_folders(
    tmp_path: pathlib.Path,
) -> None:
    for name in ("dog", "cat", ".ipynb_checkpoints"):
        (tmp_path / name).mkdir()
        PIL.Image.new("L", (5, 4), 7).save(tmp_path / name / "1.PNG")
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    dataset = data.PhotoDataset(tmp_path)
    assert dataset.classes == ["cat", "dog"]
    assert [label for _, label in dataset] == [0, 1]
    assert dataset[0][0].tolist() == [[[7] * 5] * 4] * 3


@pytest.mark.parametrize("made", ["nothing", "empty", "no class", "no image"])
def test_folder_without_photos(tmp_path: pathlib.Path, made: str) -> None:
    folder = tmp_path / "mine"
    if made != "nothing":
        folder.mkdir()
    if made == "no class":
        PIL.Image.new("L", (5, 4)).save(folder / "1.png")
    if made == "no image":
        (folder / "cat").mkdir()
    with pytest.raises(
        data.DataError, match="expected a folder for each class"
    ) as info:
        data.PhotoDataset(folder)
    assert str(folder) in str(info.value)


def test_corrupt_photo(drawn: pathlib.Path, tmp_path: pathlib.Path) -> None:
    path = copy_with_corrupt(drawn, tmp_path, 13)
    dataset = data.PhotoDataset(tmp_path)
    dataset[12]
    with pytest.raises(data.DataError) as raised:
        dataset[13]
    assert f"photo 13, {path}" in str(raised.value)
    pathlib.Path(path).unlink()
    with pytest.raises(data.DataError, match=r"photo 13, .*No such file"):
        dataset[13]


def test_corrupt_photo_in_a_worker(drawn: pathlib.Path, tmp_path: pathlib.Path) -> None:
    path = copy_with_corrupt(drawn, tmp_path, 13)
    loader = DataLoader(data.PhotoDataset(tmp_path), batch_size=8, num_workers=2)
    with pytest.raises(data.DataError) as raised:
        list(loader)
    assert f"photo 13, {path}" in str(raised.value)
    assert "Remove or replace" in str(raised.value)
    # PyTorch's frames hold the loader in a cycle; if the garbage collector gets to it,
    # ending the workers takes it 5 s each.
    traceback.clear_frames(raised.tb)


def test_dataset_reaches_spawned_workers(drawn: pathlib.Path) -> None:
    dataset = data.PhotoDataset(drawn)
    copy = pickle.loads(pickle.dumps(dataset))
    assert (copy.samples, copy.classes) == (dataset.samples, dataset.classes)
    loader = DataLoader(
        dataset, batch_size=20, num_workers=1, multiprocessing_context="spawn"
    )
    images, labels = zip(*loader, strict=True)
    assert torch.equal(torch.cat(images)[21], dataset[21][0])
    assert torch.cat(labels).bincount().tolist() == [4] * 10


# Far away


def test_distant_samples_come_later_and_unchanged(drawn: pathlib.Path) -> None:
    near = data.PhotoDataset(drawn)
    far = data.Distant(near, seconds=0.02)
    begun = time.perf_counter()
    image, label = far[13]
    assert time.perf_counter() - begun >= 0.02
    assert torch.equal(image, near[13][0])
    assert (label, len(far)) == (near[13][1], len(near))


def test_waiting_for_distant_samples_needs_no_core() -> None:
    far = data.Distant([0], seconds=0.2)
    begun = time.process_time()
    far[0]
    assert time.process_time() - begun < 0.1


def test_distant_reaches_spawned_workers(drawn: pathlib.Path) -> None:
    far = data.Distant(data.PhotoDataset(drawn), seconds=0.001)
    copy = pickle.loads(pickle.dumps(far))
    assert (copy.seconds, copy.dataset.samples) == (0.001, far.dataset.samples)
    loader = DataLoader(
        far, batch_size=20, num_workers=1, multiprocessing_context="spawn"
    )
    assert torch.equal(torch.cat([images for images, _ in loader])[21], far[21][0])


def test_distant_ends_where_its_data_set_ends() -> None:
    far = data.Distant(["a", "b"], seconds=0.0)
    assert list(far) == ["a", "b"]
    assert repr(data.Distant([1], seconds=0.005)) == "[1], each 5.00 ms away"


@pytest.mark.parametrize("seconds", [-0.1, math.inf, math.nan])
def test_distance_is_a_time(seconds: float) -> None:
    with pytest.raises(ValueError, match=r"Distant\(seconds=.*0\.005 is 5 ms"):
        data.Distant([1], seconds=seconds)


# The module


def test_import_loads_no_heavy_library() -> None:
    heavy = {"torch", "torchvision", "matplotlib", "pandas", "ipywidgets", "PIL"}
    code = f"import sys, kit.data; print({heavy} & set(sys.modules))"
    output, errors = run_python(code).communicate(timeout=60)
    assert output.strip() == "set()", errors


def test_examples(cache: pathlib.Path) -> None:
    results = [doctest.testmod(room) for room in (data, datasets, drawing, storage)]
    assert sum(result.attempted for result in results) >= 8
    assert not any(result.failed for result in results)
