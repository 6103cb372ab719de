"""Photos and letters: the same pixels everywhere, never half-done, read as they are."""

import hashlib
import os
import pathlib
from multiprocessing import get_context

import numpy as np
import PIL.Image
import pytest
import torch
from helpers import forked, reader_state
from torchvision.datasets import ImageFolder

from kit import data
from kit.data import letters, photo

#: Every recording rests on these pixels; changed ones need a new VERSION of their
#: module, or readers keep the old ones.
PIXELS = {
    "photos": "2b3d9758e25617dc840409fe336ab811ab019c903663d048548c8ee5dd2c711b",
    "letters": "0ab490f9fdfa639c77f3607a8c82641adca66f4733806f0215c162bf1b25c5be",
}


def ask_for_photos():
    return data.photos(40)


def ask_for_letters():
    return data.glyphs(train=False)


either = pytest.mark.parametrize("ask", [ask_for_photos, ask_for_letters])


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """The folder of 20 photos."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KIT_CACHE", str(tmp_path_factory.mktemp("drawn")))
        return data.photos(20)


@pytest.fixture
def cache(own_folder, tmp_path, monkeypatch):
    """An empty cache, and gray pictures, for how they are kept is what counts."""
    draw_with(monkeypatch, lambda number: None)
    return tmp_path / "cache"


def draw_with(monkeypatch, act):
    """Let pictures be drawn at once, in gray; `act(number)` is called before each."""

    def draw_photo(number):
        act(number)
        return np.full((8, 8, 3), number % 256, np.uint8), number % 10

    def draw_chunk(number):
        act(number - 600)  # the letters to test with begin there
        gray = np.full((letters.CHUNK, 28, 28), number % 256, np.uint8)
        return gray, np.arange(letters.CHUNK, dtype=np.uint8) % 10

    monkeypatch.setattr(photo, "draw_photo", draw_photo)
    monkeypatch.setattr(letters, "draw_chunk", draw_chunk)


def test_pixels_are_the_same_on_every_machine_and_need_no_readers_numbers():
    before = reader_state()
    photos = b"".join(photo.draw_photo(n)[0].tobytes() for n in range(20))
    chunks = [array.tobytes() for n in range(10) for array in letters.draw_chunk(n)]
    drawn = {"photos": photos, "letters": b"".join(chunks)}
    assert {k: hashlib.sha256(x).hexdigest() for k, x in drawn.items()} == PIXELS
    assert reader_state() == before


def test_photos_are_files_that_torchvision_reads_alike(drawn):
    dataset = data.PhotoDataset(drawn)
    reference = ImageFolder(drawn)
    assert dataset.classes == reference.classes == [*photo.CLASSES]
    assert (dataset.samples, len(dataset)) == (reference.samples, 20)
    image, label = dataset[11]
    expected = np.asarray(reference[11][0]).transpose(2, 0, 1)
    assert (image.dtype, label) == (torch.uint8, reference[11][1])
    assert image.shape == (3, 400, 400) and np.array_equal(image.numpy(), expected)
    sizes = [os.path.getsize(path) for path, _ in dataset.samples]
    assert 40_000 <= np.mean(sizes) <= 80_000


def test_every_size_has_a_place_of_its_own_and_a_quick_run_has_few(cache, monkeypatch):
    def count():
        sets = [data.PhotoDataset(data.photos(n)) for n in (10, 300)]
        return [*map(len, sets), len(data.glyphs()), len(data.glyphs(train=False))]

    assert count() == [10, 300, 60_000, 10_000]
    monkeypatch.setenv("KIT_QUICK", "1")
    assert count() == [10, photo.MOST_IN_QUICK_MODE, 1000, 1000]
    monkeypatch.delenv("KIT_QUICK")
    assert count() == [10, 300, 60_000, 10_000]


@either
def test_a_failure_leaves_nothing_and_a_whole_set_stays(ask, cache, monkeypatch):
    def fail(number):
        if number == 25:
            raise KeyboardInterrupt

    draw_with(monkeypatch, fail)
    with pytest.raises(KeyboardInterrupt):
        ask()
    assert not [*cache.glob("*")]
    draw_with(monkeypatch, lambda number: None)
    ask()
    draw_with(monkeypatch, fail)
    ask()  # it draws nothing again
    assert len([*cache.glob("*")]) == 1


@either
def test_a_full_disk_leaves_nothing_and_says_what_to_do(ask, cache, monkeypatch):
    def refuse(path, *_, **__):
        pathlib.Path(path).touch()  # half of it is there
        raise OSError("No space left on device")

    monkeypatch.setattr(np, "savez", refuse)
    monkeypatch.setattr(pathlib.Path, "write_bytes", refuse)
    with pytest.raises(data.DataError, match="KIT_CACHE=") as caught:
        ask()
    assert "No space left" in str(caught.value) and str(cache) in str(caught.value)
    assert not [*cache.glob("*")]


@either
def test_two_processes_that_draw_the_same_do_not_break_the_cache(
    ask, cache, monkeypatch
):
    """Both draw all before either can keep it."""
    barrier = get_context("fork").Barrier(2)

    def draw(number):
        if number == 39:
            barrier.wait(30)

    draw_with(monkeypatch, draw)
    both = [forked(ask), forked(ask)]
    for process in both:
        process.join(60)
    assert [process.exitcode for process in both] == [0, 0]
    assert len([*cache.glob("*")]) == 1


def test_a_readers_own_photos_are_found_or_it_is_said_how_they_lie(tmp_path):
    with pytest.raises(data.DataError, match=r"cat.*\.jpg"):
        data.PhotoDataset(tmp_path)
    for name in ("dog", "cat", ".ipynb_checkpoints"):
        (tmp_path / name).mkdir()
        PIL.Image.new("L", (5, 4), 7).save(tmp_path / name / "1.jpg")
    dataset = data.PhotoDataset(tmp_path)
    assert dataset.classes == ["cat", "dog"]
    assert [label for _, label in dataset] == [0, 1]
    assert dataset[0][0].shape == (3, 4, 5), "gray is read, too"
    broken = tmp_path / "dog" / "1.jpg"
    broken.write_bytes(broken.read_bytes()[:100])
    with pytest.raises(data.DataError, match=str(broken)):
        dataset[1]


def test_a_broken_file_of_letters_is_named(cache):
    data.glyphs(train=False)
    (file,) = cache.iterdir()
    file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(data.DataError, match=str(file)):
        data.glyphs(train=False)
