"""Drawn letters are the same everywhere, and a broken file of them is named."""

from __future__ import annotations

import hashlib
import pathlib
import pickle
import random

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from kit import data
from kit.data import letters

# Every recording rests on these; changed images need a new letters.VERSION, or readers
# keep the old ones.
PIXELS_SHA256 = "0ab490f9fdfa639c77f3607a8c82641adca66f4733806f0215c162bf1b25c5be"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return a cache folder where both parts were drawn; the tests only read it."""
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def kept(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Give the kit a cache folder that keeps what was drawn."""
    monkeypatch.setenv("KIT_CACHE", str(folder))
    return folder


# The letters


def test_pixels_are_the_same_on_every_machine() -> None:
    digest = hashlib.sha256()
    for number in range(10):
        images, labels = letters.draw_chunk(number)
        digest.update(images.tobytes() + labels.tobytes())
    assert digest.hexdigest() == PIXELS_SHA256


@pytest.mark.parametrize(("train", "count"), [(True, 60_000), (False, 10_000)])
def test_sizes_types_and_balanced_classes(
    kept: pathlib.Path, train: bool, count: int
) -> None:
    dataset = data.glyphs(train)
    assert len(dataset) == count
    assert dataset.images.shape == (count, 1, 28, 28)
    assert (dataset.images.dtype, dataset.labels.dtype) == (torch.uint8, torch.int64)
    assert dataset.labels.bincount().tolist() == [count // 10] * 10
    assert dataset.classes == tuple("CDGIJOQTUY")


def test_any_stride_of_the_images_has_all_classes(kept: pathlib.Path) -> None:
    """Each rank may take every other image, or a stretch of them."""
    labels = data.glyphs().labels
    for share in (labels[::2], labels[1::10], labels[:1000], labels[-1000:]):
        counts = share.bincount(minlength=10) / len(share)
        assert 0.07 < counts.min() <= counts.max() < 0.13


def test_a_sample_is_a_float_image_and_an_int(kept: pathlib.Path) -> None:
    dataset = data.glyphs(train=False)
    image, label = dataset[7]
    assert (image.shape, image.dtype) == ((1, 28, 28), torch.float32)
    assert type(label) is int
    assert torch.equal(image, dataset.images[7] / 255)
    images, _ = dataset[:]
    assert 0 <= images.min() < 0.05
    assert 0.95 < images.max() <= 1


def test_images_differ_and_parts_share_none(kept: pathlib.Path) -> None:
    parts = [data.glyphs(train).images for train in (True, False)]
    digests = {image.tobytes() for part in parts for image in part.numpy()}
    assert len(digests) == 70_000


@pytest.mark.parametrize("letter", letters.LETTERS)
def test_every_letter_fits_its_map(letter: str) -> None:
    """What lies beyond a map's edge shows its outermost cells: these are no ink."""
    distances = letters._measure_distances()[letters.LETTERS.index(letter)]
    edge = np.concatenate([distances[[0, -1]].ravel(), distances[:, [0, -1]].ravel()])
    assert distances.min() < 0.3
    assert edge.min() > 5
    assert 0.02 < (distances < 1.5).mean() < 0.3


def test_the_random_state_matters_not_and_stays(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look() -> tuple[object, ...]:
        state = np.random.get_state()
        return random.getstate(), state[1].tolist(), state[2], torch.get_rng_state()

    digests = set()
    for seed in (1, 2):
        for seed_all in (random.seed, np.random.seed, torch.manual_seed):
            seed_all(seed)
        before = look()
        monkeypatch.setenv("KIT_CACHE", str(tmp_path / str(seed)))
        dataset = data.glyphs(train=False)
        after = look()
        assert before[:3] == after[:3]
        assert torch.equal(before[3], after[3])
        digests.add(hashlib.sha256(dataset.images.numpy().tobytes()).hexdigest())
    assert len(digests) == 1


# Kept


def test_what_is_kept_is_what_was_drawn(kept: pathlib.Path) -> None:
    for train, first in ((True, 0), (False, 600)):
        dataset = data.glyphs(train)
        for number in (0, 57):
            images, labels = letters.draw_chunk(first + number)
            place = slice(number * letters.CHUNK, (number + 1) * letters.CHUNK)
            assert np.array_equal(dataset.images[place, 0].numpy(), images)
            assert np.array_equal(dataset.labels[place].numpy(), labels)


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "foreign"])
def test_a_broken_file_is_named(
    kept: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: str,
) -> None:
    data.glyphs(train=False)
    (source,) = kept.glob("glyphs-test-*")
    whole = bytearray(source.read_bytes())
    whole[5_000_000] ^= 1
    pieces = {"cut": whole[:-1000], "flipped": whole, "empty": b"", "foreign": b"PNG"}
    (tmp_path / source.name).write_bytes(pieces[damage])
    monkeypatch.setenv("KIT_CACHE", str(tmp_path))
    with pytest.raises(data.DataError) as raised:
        data.glyphs(train=False)
    assert str(raised.value).startswith(f"cannot read {tmp_path / source.name}: ")
    assert "Remove this file" in str(raised.value)


# As a data set


def test_batches_by_slices_lists_and_tensors(kept: pathlib.Path) -> None:
    dataset = data.glyphs(train=False)
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
    dataset = data.glyphs(train=False)
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


def test_it_reaches_another_process(kept: pathlib.Path) -> None:
    dataset = data.glyphs(train=False)
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy.classes == dataset.classes
    assert torch.equal(copy[:][0], dataset[:][0])
    assert torch.equal(copy.labels, dataset.labels)


def test_it_moves_to_a_device() -> None:
    images = torch.zeros(3, 1, 28, 28, dtype=torch.uint8)
    dataset = data.GreyImages(images, torch.arange(3), ("a", "b", "c")).to("meta")
    batch, labels = dataset[:2]
    assert (batch.device.type, labels.device.type) == ("meta", "meta")
    assert (batch.dtype, dataset.classes) == (torch.float32, ("a", "b", "c"))


def test_it_shows_itself(kept: pathlib.Path) -> None:
    dataset = data.glyphs(train=False)
    assert repr(dataset) == "10,000 grey images of 10 classes"
    html = dataset._repr_html_()
    assert html.count("<img") == 10
    assert all(f'alt="image: {letter}"' in html for letter in letters.LETTERS)
    assert len(html) < 50_000
    some = data.GreyImages(dataset.images[:1], torch.tensor([1]), ("none", "one"))
    assert some._repr_html_().count("<img") == 1
