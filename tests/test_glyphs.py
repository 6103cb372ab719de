"""Drawn letters are the same everywhere, never half-done; Fashion-MNIST is read."""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import pathlib
import pickle
import random
import signal
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from kit import data, progress
from kit.data import fashion, lettering, storage

REPOSITORY = pathlib.Path(__file__).parents[1]
# Changed images need a new lettering.VERSION, or readers keep the old ones.
PIXELS_SHA256 = "0ab490f9fdfa639c77f3607a8c82641adca66f4733806f0215c162bf1b25c5be"
FILES = {
    "train-images-idx3-ubyte": "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte": "t10k-labels-idx1-ubyte",
}
DRAW = "import kit.data; kit.data.glyphs(train=False)"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return a folder where both parts were drawn; the tests only read it."""
    folder = tmp_path_factory.mktemp("kept")
    for train in (True, False):
        data.glyphs(train, folder=folder)
    return folder


@pytest.fixture
def cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Give the kit an empty cache folder."""
    monkeypatch.setenv("KIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def list_names(folder: pathlib.Path) -> list[str]:
    """List what is in a folder, hidden names too; nothing where there is none."""
    return sorted(os.listdir(folder)) if folder.exists() else []


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


# The letters


def test_pixels_are_the_same_on_every_machine() -> None:
    digest = hashlib.sha256()
    for number in range(10):
        images, labels = lettering.draw_chunk(number)
        digest.update(images.tobytes() + labels.tobytes())
    assert digest.hexdigest() == PIXELS_SHA256


@pytest.mark.parametrize(("train", "count"), [(True, 60_000), (False, 10_000)])
def test_sizes_types_and_balanced_classes(
    kept: pathlib.Path, train: bool, count: int
) -> None:
    dataset = data.glyphs(train, folder=kept)
    assert len(dataset) == count
    assert dataset.images.shape == (count, 1, 28, 28)
    assert (dataset.images.dtype, dataset.labels.dtype) == (torch.uint8, torch.int64)
    assert dataset.labels.bincount().tolist() == [count // 10] * 10
    assert dataset.classes == tuple("CDGIJOQTUY")


def test_any_stride_of_the_images_has_all_classes(kept: pathlib.Path) -> None:
    """Each rank may take every other image, or a stretch of them."""
    labels = data.glyphs(folder=kept).labels
    for share in (labels[::2], labels[1::10], labels[:1000], labels[-1000:]):
        counts = share.bincount(minlength=10) / len(share)
        assert 0.07 < counts.min() <= counts.max() < 0.13


def test_a_sample_is_a_float_image_and_an_int(kept: pathlib.Path) -> None:
    dataset = data.glyphs(train=False, folder=kept)
    image, label = dataset[7]
    assert (image.shape, image.dtype) == ((1, 28, 28), torch.float32)
    assert type(label) is int
    assert torch.equal(image, dataset.images[7] / 255)
    images, _ = dataset[:]
    assert 0 <= images.min() < 0.05
    assert 0.95 < images.max() <= 1


def test_images_differ_and_parts_share_none(kept: pathlib.Path) -> None:
    parts = [data.glyphs(train, folder=kept).images for train in (True, False)]
    digests = {image.tobytes() for part in parts for image in part.numpy()}
    assert len(digests) == 70_000


@pytest.mark.parametrize("letter", lettering.LETTERS)
def test_every_letter_fits_its_map(letter: str) -> None:
    """What lies beyond a map's edge shows its outermost cells: these are no ink."""
    distances = lettering._measure_distances()[lettering.LETTERS.index(letter)]
    edge = np.concatenate([distances[[0, -1]].ravel(), distances[:, [0, -1]].ravel()])
    assert distances.min() < 0.3
    assert edge.min() > 5
    assert 0.02 < (distances < 1.5).mean() < 0.3


def test_the_random_state_matters_not_and_stays(cache: pathlib.Path) -> None:
    def look() -> tuple[object, ...]:
        state = np.random.get_state()
        return random.getstate(), state[1].tolist(), state[2], torch.get_rng_state()

    digests = set()
    for seed in (1, 2):
        for seed_all in (random.seed, np.random.seed, torch.manual_seed):
            seed_all(seed)
        before = look()
        dataset = data.glyphs(train=False, folder=cache / str(seed))
        after = look()
        assert before[:3] == after[:3]
        assert torch.equal(before[3], after[3])
        digests.add(hashlib.sha256(dataset.images.numpy().tobytes()).hexdigest())
    assert len(digests) == 1


# Kept, never half-done


def test_a_second_call_reads_what_the_first_one_drew(
    cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = data.glyphs(train=False)
    (name,) = list_names(cache)
    written = (cache / name).stat().st_mtime_ns
    monkeypatch.setattr(lettering, "draw_chunk", None)
    again = data.glyphs(train=False)
    assert torch.equal(fresh.images, again.images)
    assert torch.equal(fresh.labels, again.labels)
    assert list_names(cache) == [name]
    assert (cache / name).stat().st_mtime_ns == written


def test_what_is_kept_is_what_was_drawn(kept: pathlib.Path) -> None:
    for train, first in ((True, 0), (False, 600)):
        dataset = data.glyphs(train, folder=kept)
        for number in (0, 57):
            images, labels = lettering.draw_chunk(first + number)
            place = slice(number * lettering.CHUNK, (number + 1) * lettering.CHUNK)
            assert np.array_equal(dataset.images[place, 0].numpy(), images)
            assert np.array_equal(dataset.labels[place].numpy(), labels)


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_a_failure_in_the_middle_leaves_nothing(
    cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    draw_chunk = lettering.draw_chunk

    def fail_late(number: int) -> tuple[np.ndarray, np.ndarray]:
        if number == 660:
            raise error
        return draw_chunk(number)

    with monkeypatch.context() as patch:
        patch.setattr(lettering, "draw_chunk", fail_late)
        with pytest.raises(error):
            data.glyphs(train=False)
    assert list_names(cache) == []
    assert len(data.glyphs(train=False)) == 10_000


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT to send")
def test_an_interrupt_leaves_nothing(cache: pathlib.Path) -> None:
    slow = (
        "import time; from kit.data import lettering; draw = lettering.draw_chunk\n"
        "lettering.draw_chunk = lambda n: (time.sleep(0.2), draw(n))[1]\n"
    )
    process = run_python(slow + DRAW, KIT_CACHE=str(cache))
    wait_for(cache.exists)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
    assert list_names(cache) == []


def wait_for(condition) -> None:
    patience = time.monotonic() + 60
    while not condition() and time.monotonic() < patience:
        time.sleep(0.05)
    assert condition()


def test_progress_is_shown_where_it_takes_long(
    cache: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(progress, "_SILENT_SECONDS", 60)
    data.glyphs(train=False, folder=cache / "quick")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "_SILENT_SECONDS", 0.01)
    data.glyphs(train=False, folder=cache / "slow")
    line = capsys.readouterr().err.splitlines()[0]
    assert line.startswith("drawing 10,000 images, once · drawing, 0 s so far")


def test_full_disk(cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(file, **_: object) -> None:
        file.write(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(np, "savez", fill)
    with pytest.raises(data.DataError) as raised:
        data.glyphs(train=False)
    message = str(raised.value)
    assert message.startswith(f"cannot keep glyphs(train=False) in {cache}: ")
    assert os.strerror(errno.ENOSPC) in message
    assert "They need 9 MB" in message
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
            data.glyphs(train=False)
    assert str(cache) in str(raised.value)
    assert list_names(cache) == []


def test_cache_that_is_a_file(cache: pathlib.Path) -> None:
    cache.write_text("not a folder")
    with pytest.raises(data.DataError, match="KIT_CACHE="):
        data.glyphs(train=False)
    assert cache.read_text() == "not a folder"


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "foreign"])
def test_a_broken_file_is_named(kept: pathlib.Path, cache, damage: str) -> None:
    (source,) = kept.glob("glyphs-test-*")
    whole = bytearray(source.read_bytes())
    whole[5_000_000] ^= 1
    pieces = {"cut": whole[:-1000], "flipped": whole, "empty": b"", "foreign": b"PNG"}
    cache.mkdir()
    (cache / source.name).write_bytes(pieces[damage])
    with pytest.raises(data.DataError) as raised:
        data.glyphs(train=False)
    assert str(raised.value).startswith(f"cannot read {cache / source.name}: ")
    assert "Remove this file" in str(raised.value)


def test_two_threads_at_once(
    cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both_have_drawn = threading.Barrier(2, timeout=60)
    draw_chunks = storage._draw_chunks

    def draw_and_meet(chunks: range) -> tuple[np.ndarray, np.ndarray]:
        drawn = draw_chunks(chunks)
        both_have_drawn.wait()
        return drawn

    monkeypatch.setattr(storage, "_draw_chunks", draw_and_meet)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(data.glyphs, [False, False])
    assert torch.equal(first.images, second.images)
    assert len(list_names(cache)) == 1


def test_two_processes_at_once(cache: pathlib.Path) -> None:
    processes = [run_python(DRAW, KIT_CACHE=str(cache)) for _ in range(2)]
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    assert list_names(cache) == [f"glyphs-test-v{lettering.VERSION}.npz"]


# As a data set


def test_batches_by_slices_lists_and_tensors(kept: pathlib.Path) -> None:
    dataset = data.glyphs(train=False, folder=kept)
    expected = torch.stack([dataset[i][0] for i in range(3, 9)])
    for index in (slice(3, 9), list(range(3, 9)), torch.arange(3, 9)):
        images, labels = dataset[index]
        assert (images.dtype, labels.dtype) == (torch.float32, torch.int64)
        assert torch.equal(images, expected)
        assert labels.tolist() == [dataset[i][1] for i in range(3, 9)]
    assert dataset[torch.tensor(3)][1] == dataset[3][1]
    assert dataset[-1][1] == dataset[9_999][1]
    with pytest.raises(IndexError):
        dataset[10_000]


def test_a_loader_takes_samples_or_batches(kept: pathlib.Path) -> None:
    dataset = data.glyphs(train=False, folder=kept)
    whole = BatchSampler(SequentialSampler(dataset), 256, drop_last=False)
    one = next(iter(DataLoader(dataset, batch_size=256)))
    other = next(iter(DataLoader(dataset, sampler=whole, batch_size=None)))
    for images, labels in (one, other):
        assert torch.equal(images, dataset[:256][0])
        assert torch.equal(labels, dataset[:256][1])


def test_it_ends_when_it_is_walked_through() -> None:
    images = torch.zeros(3, 1, 28, 28, dtype=torch.uint8)
    dataset = data.GreyImages(images, torch.arange(3), ("a", "b", "c"))
    assert [label for _, label in dataset] == [0, 1, 2]


def test_it_reaches_spawned_workers(kept: pathlib.Path) -> None:
    dataset = data.glyphs(train=False, folder=kept)
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy.classes == dataset.classes
    loader = DataLoader(
        copy, batch_size=5000, num_workers=1, multiprocessing_context="spawn"
    )
    images, labels = zip(*loader, strict=True)
    assert torch.equal(torch.cat(images), dataset[:][0])
    assert torch.equal(torch.cat(labels), dataset.labels)


def test_it_moves_to_a_device() -> None:
    images = torch.zeros(3, 1, 28, 28, dtype=torch.uint8)
    dataset = data.GreyImages(images, torch.arange(3), ("a", "b", "c")).to("meta")
    batch, labels = dataset[:2]
    assert (batch.device.type, labels.device.type) == ("meta", "meta")
    assert (batch.dtype, dataset.classes) == (torch.float32, ("a", "b", "c"))


def test_it_shows_itself(kept: pathlib.Path) -> None:
    dataset = data.glyphs(train=False, folder=kept)
    assert repr(dataset) == "10,000 grey images of 10 classes"
    html = dataset._repr_html_()
    assert html.count("<img") == 10
    assert all(f'alt="image: {letter}"' in html for letter in lettering.LETTERS)
    assert len(html) < 50_000
    some = data.GreyImages(dataset.images[:1], torch.tensor([1]), ("none", "one"))
    assert some._repr_html_().count("<img") == 1


# Fashion-MNIST


def write_idx(path: pathlib.Path, array: np.ndarray, packed: bool) -> None:
    """Write an IDX file: zeros, type, dimensions, sizes, then the bytes."""
    content = struct.pack(">HBB", 0, 8, array.ndim)
    content += struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    if packed:
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(content))
    else:
        path.write_bytes(content)


@pytest.fixture
def wardrobe(cache: pathlib.Path) -> dict[bool, tuple[np.ndarray, np.ndarray]]:
    """Return images and labels of a small wardrobe, by whether they are to train on."""
    generator = np.random.RandomState(0)
    (cache / "FashionMNIST" / "raw").mkdir(parents=True)

    def make(count: int) -> tuple[np.ndarray, np.ndarray]:
        images = generator.randint(0, 256, (count, 28, 28)).astype(np.uint8)
        return images, generator.randint(0, 10, count).astype(np.uint8)

    return {True: make(30), False: make(12)}


def fill(cache: pathlib.Path, wardrobe, *, packed: bool) -> pathlib.Path:
    raw = cache / "FashionMNIST" / "raw"
    for arrays, names in zip(wardrobe.values(), FILES.items(), strict=True):
        for array, name in zip(arrays, names, strict=True):
            write_idx(raw / name, array, packed)
    return raw


@pytest.mark.parametrize("packed", [False, True])
def test_fashion_mnist_is_what_the_files_hold(cache, wardrobe, packed: bool) -> None:
    fill(cache, wardrobe, packed=packed)
    for _ in range(2):  # the second time, nothing has to be unpacked
        for train, (images, labels) in wardrobe.items():
            dataset = data.fashion_mnist(train)
            assert np.array_equal(dataset.images[:, 0].numpy(), images)
            assert np.array_equal(dataset.labels.numpy(), labels)
            assert dataset.classes[9] == "Ankle boot"


def test_fashion_mnist_and_glyphs_can_be_swapped(kept, cache, wardrobe) -> None:
    fill(cache, wardrobe, packed=True)
    ours, theirs = data.glyphs(folder=kept), data.fashion_mnist(folder=str(cache))
    for one, other in (
        (ours.images[:9], theirs.images[:9]),
        (ours.labels[:9], theirs.labels[:9]),
        (ours[3][0], theirs[3][0]),
        (ours[:9][0], theirs[:9][0]),
        (ours[:9][1], theirs[:9][1]),
    ):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
    assert type(ours) is type(theirs)
    assert type(ours[3][1]) is type(theirs[3][1]) is int
    assert len(ours.classes) == len(theirs.classes)


@pytest.mark.parametrize("there", ["nothing", "test part"])
def test_missing_files_are_named_and_nothing_is_downloaded(
    cache, monkeypatch: pytest.MonkeyPatch, there: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr("socket.getaddrinfo", refuse)
    raw = cache / "FashionMNIST" / "raw"
    if there == "test part":
        raw.mkdir(parents=True)
        for name in ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte.gz"):
            (raw / name).write_bytes(gzip.compress(b"content"))
    with pytest.raises(data.DataError) as raised:
        data.fashion_mnist(train=False)
    message = str(raised.value)
    count = {"nothing": 4, "test part": 2}[there]
    assert message.startswith(f"fashion_mnist(): {count} of its files are missing in")
    for name in [*FILES, *FILES.values()]:
        assert (name in message) == (there == "nothing" or name.startswith("train"))
    assert str(raw) in message
    assert fashion.PAGE in message
    assert "kit.data.glyphs()" in message
    assert message.count("\n") < 6


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"<html>not found</html>", ""),
        (struct.pack(">HBBIII", 0, 8, 3, 30, 28, 28) + bytes(99), "invalid for input"),
        (struct.pack(">HBBIII", 0, 8, 3, 2, 28, 28) + bytes(1568), "30 labels for"),
        (struct.pack(">HBBIII", 0, 8, 3, 30, 2, 2) + bytes(120), "28 × 28"),
        (b"", ""),
    ],
)
def test_unreadable_files_are_named(cache, wardrobe, content: bytes, said: str) -> None:
    raw = fill(cache, wardrobe, packed=False)
    (raw / "train-images-idx3-ubyte").write_bytes(content)
    with pytest.raises(data.DataError) as raised:
        data.fashion_mnist()
    message = str(raised.value)
    assert message.startswith(
        "fashion_mnist(train=True): cannot read the IDX files train-*"
    )
    assert str(raw) in message
    assert said in message
    assert fashion.PAGE in message
    assert len(data.fashion_mnist(train=False)) == 12


@pytest.mark.parametrize("damage", ["cut", "no gzip", "flipped"])
def test_a_broken_package_leaves_nothing_half_made(
    cache, wardrobe, damage: str
) -> None:
    raw = fill(cache, wardrobe, packed=True)
    victim = raw / "train-images-idx3-ubyte.gz"
    whole = bytearray(victim.read_bytes())
    whole[len(whole) // 2] ^= 255
    pieces = {"cut": whole[:-500], "no gzip": b"<html>", "flipped": whole}
    victim.write_bytes(pieces[damage])
    before = list_names(raw)
    with pytest.raises(data.DataError) as raised:
        data.fashion_mnist()
    assert f"cannot unpack {victim}: " in str(raised.value)
    assert list_names(raw) == before
