"""Photos and letters: the same pixels everywhere, never half-done, read as they are."""

import errno
import hashlib
import io
import os
import pathlib
import pickle
import shutil
import time
import traceback
from multiprocessing import get_context

import numpy as np
import PIL.Image
import pytest
import torch
from helpers import forked, reader_state
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from kit import data
from kit.data import letters, photo
from kit.data.cache import cache_folder

#: Every recording rests on these pixels; changed ones need a new VERSION of their
#: module, or readers keep the old ones.
PHOTOS = "2b3d9758e25617dc840409fe336ab811ab019c903663d048548c8ee5dd2c711b"
LETTERS = "0ab490f9fdfa639c77f3607a8c82641adca66f4733806f0215c162bf1b25c5be"
ASK = {"photos": lambda: data.photos(40), "letters": lambda: data.glyphs(train=False)}
either = pytest.mark.parametrize("ask", ASK.values(), ids=ASK)


@pytest.fixture
def drawn(tmp_path_factory, monkeypatch):
    """20 photos; like 1,000 letters of each kind they are drawn once, and kept."""
    monkeypatch.setenv("KIT_CACHE", str(tmp_path_factory.getbasetemp() / "drawn"))
    monkeypatch.setenv("KIT_QUICK", "1")
    return data.photos(20)


@pytest.fixture
def cache(own_folder, tmp_path, monkeypatch):
    """An empty cache, and grey pictures, for how they are kept is what counts."""
    draw_with(monkeypatch, lambda number: None)
    return tmp_path / "cache"


def draw_with(monkeypatch, act):
    """Let pictures be drawn at once, in grey; `act(number)` is called before each."""

    def draw_photo(number):
        act(number)
        return np.full((8, 8, 3), number % 256, np.uint8), number % 10

    def draw_chunk(number):
        act(number - 600)  # the letters to test with begin there
        grey = np.full((letters.CHUNK, 28, 28), number % 256, np.uint8)
        return grey, np.arange(letters.CHUNK, dtype=np.uint8) % 10

    monkeypatch.setattr(photo, "draw_photo", draw_photo)
    monkeypatch.setattr(letters, "draw_chunk", draw_chunk)


def test_pixels_are_the_same_on_every_machine_and_need_no_readers_numbers():
    before = reader_state()
    photos, kinds = zip(*map(photo.draw_photo, range(20)), strict=True)
    assert [*kinds] == [*range(10)] * 2
    chunks = [array.tobytes() for n in range(10) for array in letters.draw_chunk(n)]
    drawn = b"".join(pixels.tobytes() for pixels in photos), b"".join(chunks)
    assert [hashlib.sha256(each).hexdigest() for each in drawn] == [PHOTOS, LETTERS]
    assert reader_state() == before


def test_what_is_kept_is_what_was_drawn(drawn):
    paths = sorted(drawn.rglob("*.*"), key=lambda path: path.name)
    assert [path.parent.name for path in paths] == [*photo.CLASSES] * 2
    assert 40_000 <= np.mean([path.stat().st_size for path in paths]) <= 80_000
    jpeg = io.BytesIO()
    PIL.Image.fromarray(photo.draw_photo(17)[0]).save(jpeg, "JPEG", quality=90)
    assert paths[17].read_bytes() == jpeg.getvalue()
    for train, chunk in ((True, 7), (False, 607)):
        dataset, (images, labels) = data.glyphs(train), letters.draw_chunk(chunk)
        assert np.array_equal(dataset.images[700:800, 0].numpy(), images)
        assert np.array_equal(dataset.labels[700:800].numpy(), labels)


def test_every_size_has_a_place_of_its_own_and_a_quick_run_has_few(cache, monkeypatch):
    def count():
        sets = [data.PhotoDataset(data.photos(n)) for n in (10, np.int64(300))]
        return [*map(len, sets), len(data.glyphs()), len(data.glyphs(train=False))]

    assert count() == [10, 300, 60_000, 10_000]
    for train, chunks in ((True, range(600)), (False, range(600, 700))):
        grey = data.glyphs(train).images[:: letters.CHUNK, 0, 0, 0].tolist()
        assert grey == [n % 256 for n in chunks], "no letter is in both"
    monkeypatch.setenv("KIT_QUICK", "1")
    assert count() == [10, photo.MOST_IN_QUICK_MODE, 1000, 1000]
    monkeypatch.delenv("KIT_QUICK")
    assert count() == [10, 300, 60_000, 10_000]
    with pytest.raises(ValueError, match=r"photos\(n=9\)"):
        data.photos(9)


@either
@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_a_failure_leaves_nothing_and_a_whole_set_stays(ask, cache, monkeypatch, error):
    def fail(number):
        if number == 25:
            raise error

    draw_with(monkeypatch, fail)
    with pytest.raises(error):
        ask()
    assert not [*cache.glob("*")]
    draw_with(monkeypatch, lambda number: None)
    ask()
    draw_with(monkeypatch, fail)
    ask()
    assert len([*cache.glob("*")]) == 1
    for module in (photo, letters):
        monkeypatch.setattr(module, "VERSION", "another")
    with pytest.raises(error):  # other pictures are drawn
        ask()


@either
@pytest.mark.parametrize("fails", ["mkdir", "write", "replace"])
def test_a_full_disk_leaves_nothing_and_says_what_to_do(ask, cache, monkeypatch, fails):
    def refuse(path, *_, **__):
        if fails == "write":  # half of it is there
            pathlib.Path(path).touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    places = {"write": [(np, "savez"), (pathlib.Path, "write_bytes")]}
    with monkeypatch.context() as patch:
        for owner, name in places.get(fails, [(os, fails)]):
            patch.setattr(owner, name, refuse)
        with pytest.raises(data.DataError, match=r" [39] MB ") as caught:
            ask()
    for part in (str(cache), os.strerror(errno.ENOSPC), "KIT_CACHE="):
        assert part in str(caught.value)
    assert not [*cache.glob("*")]


def test_the_cache_lies_where_the_system_keeps_such_things(cache, monkeypatch):
    monkeypatch.delenv("KIT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    assert cache_folder() == cache / "training-speed-kit"


@either
def test_two_processes_that_draw_the_same_photos_do_not_break_the_cache(
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


def test_photos_are_read_as_torchvision_reads_them_far_ones_later(drawn, monkeypatch):
    dataset, reference = data.PhotoDataset(drawn), ImageFolder(drawn)
    assert dataset.classes == reference.classes == [*photo.CLASSES]
    assert (dataset.samples, len(dataset)) == (reference.samples, 20)
    image, label = dataset[11]
    expected = np.asarray(reference[11][0]).transpose(2, 0, 1)
    assert (image.dtype, label) == (torch.uint8, reference[11][1])
    assert image.shape == (3, 400, 400) and np.array_equal(image.numpy(), expected)
    modes = data.PhotoDataset(drawn, transform=lambda image: image.mode)
    assert [mode for mode, _ in modes] == ["RGB"] * 20, "and there it ends"
    waited = []
    monkeypatch.setattr(time, "sleep", waited.append)
    far = pickle.loads(pickle.dumps(data.Distant(dataset, seconds=0.02)))
    assert torch.equal(far[11][0], image) and far[11][1] == label
    assert (waited, len(far)) == ([0.02] * 2, 20) and "20.0 ms away" in repr(far)
    assert [*data.Distant(["a", "b"], seconds=0.0)] == ["a", "b"]


@pytest.mark.parametrize("made", ["", "mine", "mine/cat", "mine/cat/1.png"])
def test_a_readers_own_photos_are_found_or_it_is_said_how_they_lie(tmp_path, made):
    (tmp_path / made).mkdir(parents=True, exist_ok=True)
    with pytest.raises(data.DataError, match=r"JPEG.*cat.*\.jpg") as caught:
        data.PhotoDataset(tmp_path / "mine")
    assert str(tmp_path / "mine") in str(caught.value)
    for name in ("dog", "cat", ".ipynb_checkpoints"):
        (tmp_path / "mine" / name).mkdir(parents=True, exist_ok=True)
        PIL.Image.new("L", (5, 4), 7).save(tmp_path / "mine" / name / "1.jpg")
    dataset = data.PhotoDataset(tmp_path / "mine")
    assert dataset.classes == ["cat", "dog"]
    assert [label for _, label in dataset] == [0, 1]
    assert dataset[0][0].tolist() == [[[7] * 5] * 4] * 3, "grey is read, too"


@pytest.mark.parametrize("workers", [0, 1])
def test_a_corrupt_photo_is_named_in_a_worker_too(drawn, tmp_path, workers):
    dataset = data.PhotoDataset(shutil.copytree(drawn, tmp_path / "mine"))
    victim = pathlib.Path(dataset.samples[13][0])
    victim.write_bytes(victim.read_bytes()[:20_000])
    loader = DataLoader(dataset, batch_size=4, num_workers=workers)
    with pytest.raises(data.DataError) as caught:
        list(loader)
    assert f"photo 13, {victim}" in str(caught.value)
    traceback.clear_frames(caught.tb)  # or the workers end when the loader is collected


def test_a_broken_file_of_letters_is_named_to_be_removed(cache):
    data.glyphs(train=False)
    (file,) = cache.iterdir()
    file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(data.DataError, match=f"{file}.*\nRemove this file"):
        data.glyphs(train=False)


def test_letters_come_one_by_one_and_in_batches_in_any_process(drawn):
    dataset = pickle.loads(pickle.dumps(data.glyphs(train=False)))
    image, label = dataset[7]
    assert (image.shape, image.dtype, type(label)) == ((1, 28, 28), torch.float32, int)
    assert torch.equal(image, dataset.images[7] / 255)
    expected = torch.stack([dataset[i][0] for i in range(3, 9)])
    for index in (slice(3, 9), [*range(3, 9)], torch.arange(3, 9)):
        images, labels = dataset[index]
        assert torch.equal(images, expected) and labels.dtype == torch.int64
        assert labels.tolist() == [dataset[i][1] for i in range(3, 9)]
    with pytest.raises(IndexError):
        dataset[1000]
    assert {x.device.type for x in dataset.to("meta")[:2]} == {"meta"}
