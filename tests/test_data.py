"""Photos are real files, the same everywhere, never half-done; data sets read them."""

from __future__ import annotations

import collections
import errno
import hashlib
import io
import os
import pathlib
import pickle
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

from kit import data, progress
from kit.data import cache as keeping
from kit.data import letters, photo

REPOSITORY = pathlib.Path(__file__).parents[1]
# Every recording rests on these; changed pictures need a new photo.VERSION, or readers
# keep the old ones.
PIXELS_SHA256 = "2b3d9758e25617dc840409fe336ab811ab019c903663d048548c8ee5dd2c711b"
#: What is kept: a folder of files, and a single file.
ASK = {"photos": "photos(40)", "glyphs": "glyphs(train=False)"}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Draw 40 photos that the tests only read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KIT_CACHE", str(tmp_path_factory.mktemp("drawn")))
        return data.photos(40)


@pytest.fixture
def cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Give the kit an empty cache folder."""
    monkeypatch.setenv("KIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(params=ASK)
def ask(request: pytest.FixtureRequest, cache: pathlib.Path):
    """Return what asks for a data set, which the empty cache does not hold."""
    return {
        "photos": lambda: data.photos(40),
        "glyphs": lambda: data.glyphs(train=False),
    }[request.param]


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
    assert counts == dict.fromkeys(photo.CLASSES, 4)
    assert 40_000 <= np.mean([path.stat().st_size for path in paths]) <= 80_000
    for path in paths:
        with PIL.Image.open(path) as image:
            assert (image.format, image.mode) == ("JPEG", "RGB")
            assert image.size == (photo.SIZE, photo.SIZE)


def test_pixels_are_the_same_on_every_machine() -> None:
    digest = hashlib.sha256()
    for index in range(20):
        pixels, label = photo.draw_photo(index)
        assert pixels.shape == (photo.SIZE, photo.SIZE, 3)
        assert pixels.dtype == np.uint8
        assert label == index % 10
        digest.update(pixels.tobytes())
    assert digest.hexdigest() == PIXELS_SHA256


def test_files_hold_what_draw_photo_draws(drawn: pathlib.Path) -> None:
    """Their bytes are equal where the JPEG library is."""
    for index in (0, 17, 39):
        pixels, label = photo.draw_photo(index)
        jpeg = io.BytesIO()
        PIL.Image.fromarray(pixels).save(jpeg, "JPEG", quality=90)
        path = drawn / photo.CLASSES[label] / f"{index:06d}.jpg"
        assert path.read_bytes() == jpeg.getvalue()


@pytest.mark.parametrize("label", range(10), ids=photo.CLASSES)
def test_every_shape_stands_out_and_lies_inside(label: int) -> None:
    for index in range(label, label + 50, 10):
        random = np.random.RandomState(index)
        turn = random.randint(0, 1000, 2) - 500
        cosine, sine = turn / np.hypot(*turn)
        y, x = np.mgrid[:400, :400] - 200

        def along(u: int, v: int, x=x, y=y, c=cosine, s=sine) -> np.ndarray:
            reach = x * (u * c - v * s) + y * (u * s + v * c)
            return (reach * 8 / 1024).astype(np.int16)

        distance = photo._measure_distance(photo.CLASSES[label], along, 130 * 8)
        inside = distance < 0
        assert 0.03 < inside.mean() < 0.4
        # The middle of a photo is at least 145 pixels from its sides.
        assert max(np.abs(x[inside]).max(), np.abs(y[inside]).max()) <= 145


def test_another_n_lies_in_another_folder(cache: pathlib.Path) -> None:
    ten, eleven = data.photos(10), data.photos(np.int64(11))
    assert (ten.parent, eleven.parent) == (cache, cache)
    assert len(list(ten.rglob("*.jpg"))) == 10
    assert len(list(eleven.rglob("*.jpg"))) == 11


@pytest.mark.parametrize("n", [0, 9, -1])
def test_too_few_photos_for_the_classes(cache: pathlib.Path, n: int) -> None:
    with pytest.raises(ValueError, match=rf"photos\(n={n}\)"):
        data.photos(n)
    assert not cache.exists()


# Kept, never half-done


def test_a_quick_run_gets_small_data_sets_of_their_own(
    cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(photo, "MOST_IN_SMOKE", 30)
    whole = data.glyphs(train=False)
    monkeypatch.setenv("KIT_SMOKE", "1")
    assert len(data.PhotoDataset()) == len(data.PhotoDataset(data.photos(50))) == 30
    assert len(data.PhotoDataset(data.photos(20))) == 20
    quick = data.glyphs(train=False)
    assert len(data.glyphs()) == len(quick) == 1000
    assert torch.equal(quick.images, whole.images[:1000])
    monkeypatch.delenv("KIT_SMOKE")
    assert len(data.glyphs(train=False)) == 10_000
    assert len(data.PhotoDataset(data.photos(50))) == 50


def test_a_second_call_does_not_draw(
    ask, cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask()
    written = {path: path.stat().st_mtime_ns for path in cache.rglob("*")}
    monkeypatch.setattr(photo, "draw_photo", None)
    monkeypatch.setattr(letters, "draw_chunk", None)
    ask()
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*")} == written
    assert len(list_names(cache)) == 1


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_a_failure_in_the_middle_leaves_nothing(
    ask,
    cache: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
) -> None:
    def fail_late(draw, last: int):
        def run(number: int):
            if number == last:
                raise error
            return draw(number)

        return run

    with monkeypatch.context() as patch:
        patch.setattr(photo, "draw_photo", fail_late(photo.draw_photo, 25))
        patch.setattr(letters, "draw_chunk", fail_late(letters.draw_chunk, 660))
        with pytest.raises(error):
            ask()
    assert list_names(cache) == []
    ask()
    assert len(list_names(cache)) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT to send")
@pytest.mark.parametrize("asked", ["photos(100_000)", ASK["glyphs"]])
def test_an_interrupt_leaves_nothing(cache: pathlib.Path, asked: str) -> None:
    slow = (
        "import time, kit.data; from kit.data import letters as x; d = x.draw_chunk\n"
        "x.draw_chunk = lambda n: (time.sleep(0.5), d(n))[1]\n"
    )
    process = run_python(f"{slow}kit.data.{asked}", KIT_CACHE=str(cache))
    patience = time.monotonic() + 60
    while not list_names(cache) and time.monotonic() < patience:
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    begun = time.monotonic()
    _, errors = process.communicate(timeout=60)
    assert time.monotonic() - begun < 10  # what has not begun is not drawn
    assert "KeyboardInterrupt" in errors
    assert list_names(cache) == []


def test_full_disk(ask, cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_bytes = pathlib.Path.write_bytes

    def refuse(path: pathlib.Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def fill(path: pathlib.Path, content: bytes) -> int:
        return refuse(path) if "25.jpg" in path.name else write_bytes(path, content)

    def fill_half(path: pathlib.Path, **_: object) -> None:
        write_bytes(path, b"half")
        refuse(path)

    monkeypatch.setattr(pathlib.Path, "write_bytes", fill)
    monkeypatch.setattr(np, "savez", fill_half)
    with pytest.raises(data.DataError) as raised:
        ask()
    message = str(raised.value)
    for part in (str(cache), os.strerror(errno.ENOSPC), " MB ", "KIT_CACHE="):
        assert part in message
    assert message.count("\n") < 6
    assert list_names(cache) == []


@pytest.mark.parametrize("name", ["mkdir", "replace"])
def test_read_only_cache(
    ask, cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        patch.setattr(os, name, refuse)
        with pytest.raises(data.DataError, match=os.strerror(errno.EROFS)) as raised:
            ask()
    assert str(cache) in str(raised.value)
    assert "KIT_CACHE=" in str(raised.value)
    assert list_names(cache) == []


def test_cache_that_is_a_file(ask, cache: pathlib.Path) -> None:
    cache.write_text("not a folder")
    with pytest.raises(data.DataError, match="KIT_CACHE="):
        ask()
    assert cache.read_text() == "not a folder"


def test_two_threads_at_once(
    ask, cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both_have_drawn = threading.Barrier(2, timeout=60)
    draw_all = keeping.draw_all

    def draw_and_meet(*asked: object) -> list[object]:
        made = draw_all(*asked)
        both_have_drawn.wait()
        return made

    monkeypatch.setattr(photo, "draw_all", draw_and_meet)
    monkeypatch.setattr(letters, "draw_all", draw_and_meet)
    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(ask), pool.submit(ask)]:
            future.result()
    assert len(list_names(cache)) == 1


@pytest.mark.parametrize("asked", ASK.values(), ids=ASK)
def test_two_processes_at_once(cache: pathlib.Path, asked: str) -> None:
    code = f"import kit.data; print(kit.data.{asked})"
    processes = [run_python(code, KIT_CACHE=str(cache)) for _ in range(2)]
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    (name,) = list_names(cache)
    assert name in (
        f"photos-40-v{photo.VERSION}",
        f"glyphs-test-v{letters.VERSION}.npz",
    )


def test_progress_is_shown_where_it_takes_long(
    ask, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_SILENT_SECONDS", 0.01)
    ask()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith(("40 photos · drawing", "10,000 letters · drawing"))
    ask()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("chosen", ["", "/elsewhere/kit", "relative", "~/own"])
def test_the_cache_folder_is_the_one_that_was_chosen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, chosen: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    monkeypatch.setenv("KIT_CACHE", chosen)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    expected = {
        "": tmp_path / "home" / ".cache" / "training-speed-kit",
        "relative": tmp_path / "relative",
        "~/own": tmp_path / "home" / "own",
    }
    assert data.cache_folder() == expected.get(chosen, pathlib.Path(chosen))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    expected[""] = tmp_path / "xdg" / "training-speed-kit"
    assert data.cache_folder() == expected.get(chosen, pathlib.Path(chosen))


# The data set


def test_dataset_agrees_with_image_folder(drawn: pathlib.Path) -> None:
    dataset, reference = data.PhotoDataset(drawn), ImageFolder(drawn)
    assert dataset.classes == reference.classes == list(photo.CLASSES)
    assert dataset.samples == reference.samples
    assert len(dataset) == 40
    image, label = dataset[21]
    assert image.dtype == torch.uint8
    expected = np.asarray(reference[21][0]).transpose(2, 0, 1)
    assert (image.shape, label) == ((3, 400, 400), reference[21][1])
    assert np.array_equal(image.numpy(), expected)


def test_dataset_ends_when_it_is_walked_through(drawn: pathlib.Path) -> None:
    dataset = data.PhotoDataset(drawn, transform=lambda image: image.mode)
    assert {mode for mode, _ in dataset} == {"RGB"}


def test_dataset_reads_grey_photos_and_skips_what_is_no_class(
    tmp_path: pathlib.Path,
) -> None:
    for name in ("dog", "cat", ".ipynb_checkpoints"):
        (tmp_path / name).mkdir()
        PIL.Image.new("L", (5, 4), 7).save(tmp_path / name / "1.jpg")
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
        PIL.Image.new("L", (5, 4)).save(folder / "1.jpg")
    if made == "no image":
        (folder / "cat").mkdir()
        PIL.Image.new("L", (5, 4)).save(folder / "cat" / "1.png")
    with pytest.raises(data.DataError, match=r"JPEG.*cat.*\.jpg") as info:
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


def test_data_sets_reach_spawned_workers(drawn: pathlib.Path) -> None:
    far = data.Distant(data.PhotoDataset(drawn), seconds=0.001)
    copy = pickle.loads(pickle.dumps(far))
    assert (copy.seconds, copy.dataset.samples) == (0.001, far.dataset.samples)
    loader = DataLoader(
        far, batch_size=20, num_workers=1, multiprocessing_context="spawn"
    )
    images, labels = zip(*loader, strict=True)
    assert torch.equal(torch.cat(images)[21], far[21][0])
    assert torch.cat(labels).bincount().tolist() == [4] * 10


def test_a_data_set_shows_a_photo_of_each_class(drawn: pathlib.Path) -> None:
    dataset = data.PhotoDataset(drawn)
    assert repr(dataset) == "40 photos of 10 classes"
    page = dataset._repr_html_()
    assert all(f'alt="image: {name}"' in page for name in photo.CLASSES)
    assert page.count("<img") == 10
    assert len(page) < 100_000


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


def test_distant_ends_where_its_data_set_ends() -> None:
    far = data.Distant(["a", "b"], seconds=0.0)
    assert list(far) == ["a", "b"]
    assert repr(data.Distant([1], seconds=0.005)) == "[1], each 5.00 ms away"


# The module


def test_import_loads_no_heavy_library() -> None:
    heavy = {"torch", "torchvision", "matplotlib", "pandas", "ipywidgets", "PIL"}
    code = f"import sys, kit.data; print({heavy} & set(sys.modules))"
    output, errors = run_python(code).communicate(timeout=60)
    assert output.strip() == "set()", errors
