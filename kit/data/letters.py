"""Images of letters, made of exactly rounded arithmetic: alike on every machine.

Numbers come from NumPy's frozen generator. What is made of them are sums, products,
quotients and square roots only, which IEEE 754 rounds alike everywhere.
"""

from __future__ import annotations

import functools
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kit.data.cache import draw_all, keep, show_classes
from kit.errors import DataError
from kit.mode import is_quick

if TYPE_CHECKING:
    import torch

VERSION = 1  # count up when the images change, or caches keep the old ones
SIDE = 28  # height and width of an image, in pixels
CHUNK = 100  # so many images are drawn together, from a seed of their own

# Each letter's strokes: points across (0–4) and down (0–6), joined by straight lines,
# an open curve or a closed one. Half of the letters are like O, half like I: those in a
# half are easily confused, and the halves differ enough to start learning by.
STROKES = {
    "C": ["curve 41 30 10 01 05 16 36 45"],
    "D": ["lines 00 06", "curve 00 20 41 45 26 06"],
    "G": ["curve 41 30 10 01 05 16 36 45", "lines 45 43 33"],
    "I": ["lines 20 26"],
    "J": ["curve 30 35 26 16 05"],
    "O": ["loop 10 30 41 45 36 16 05 01"],
    "Q": ["loop 10 30 41 45 36 16 05 01", "lines 34 46"],
    "T": ["lines 00 40", "lines 20 26"],
    "U": ["curve 00 05 16 36 45 40"],
    "Y": ["lines 00 23 40", "lines 23 26"],
}
LETTERS = tuple(STROKES)

# A letter's map tells for each of its cells how far, in pixels, the nearest stroke is.
_CELLS = 128  # across the map
_UNIT = 40  # cells in half the height of a letter
_HEIGHT = 10  # half the height of a letter, in pixels, before it is resized


def glyphs(train: bool = True) -> GreyImages:
    """Draw gray images of ten letters once, and return them as a data set in memory.

    60,000 images to train on, or 10,000 to test with: 28 × 28 pixels, as many of each
    letter, in no order; written by many hands, and partly hidden by a strip of paper.
    They are the same everywhere, whatever the random state, and lie in the cache
    folder, in a file for each part. With KIT_QUICK=1 it is the first 1,000 of them.
    Raises DataError where the file cannot be written or read.

    >>> dataset = glyphs(train=False)
    >>> image, label = dataset[0]
    >>> image.shape, dataset.classes[label]
    (torch.Size([1, 28, 28]), 'J')
    """
    import torch

    part, chunks = ("train", range(600)) if train else ("test", range(600, 700))
    if is_quick():
        part, chunks = f"{part}-quick", chunks[:10]

    def make(file: Path) -> None:
        drawn = draw_all(draw_chunk, chunks, f"{len(chunks) * CHUNK:,} letters")
        images, labels = map(np.concatenate, zip(*drawn, strict=True))
        np.savez(file, images=images[:, None], labels=labels)

    megabytes = len(chunks) * 80 // 1000 + 1
    place = keep(f"glyphs-{part}-v{VERSION}.npz", make, megabytes=megabytes)
    try:
        with np.load(place) as kept:
            images, labels = map(torch.from_numpy, (kept["images"], kept["labels"]))
    except Exception as error:  # a broken archive raises whatever it likes
        raise DataError(
            f"cannot read {place}: {error}.\n"
            "Remove this file, and it will be drawn again."
        ) from error
    return GreyImages(images, labels.long(), LETTERS)


class GreyImages:
    """Hold labelled gray images in memory, one by one or as whole batches.

    `images` (uint8, N × 1 × height × width) and `labels` (int64, N) are all of them;
    `classes` names the labels. `dataset[i]` is (image, label): a float32 tensor
    1 × height × width between 0 and 1, and an int. `dataset[start:stop]`, or a list or
    tensor of indices, is a batch: float32 images and their int64 labels. A DataLoader
    takes it as it is.

    >>> import torch
    >>> dataset = GreyImages(
    ...     torch.full((3, 1, 28, 28), 255, dtype=torch.uint8),
    ...     torch.tensor([0, 1, 0]),
    ...     ("O", "Q"),
    ... )
    >>> image, label = dataset[1]
    >>> image.shape, image.max(), dataset.classes[label]
    (torch.Size([1, 28, 28]), tensor(1.), 'Q')
    >>> images, labels = dataset[:2]
    >>> images.shape, labels
    (torch.Size([2, 1, 28, 28]), tensor([0, 1]))
    """

    def __init__(
        self, images: torch.Tensor, labels: torch.Tensor, classes: tuple[str, ...]
    ) -> None:
        self.images, self.labels, self.classes = images, labels, classes

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: Any) -> tuple[torch.Tensor, Any]:
        label = self.labels[index]
        return self.images[index].float() / 255, label if label.ndim else int(label)

    def to(self, device: str | torch.device) -> GreyImages:
        """Return the same images on a device, where batches are then made.

        >>> import torch
        >>> dataset = GreyImages(torch.zeros(1, 1, 2, 2), torch.zeros(1), ("zero",))
        >>> dataset.to("meta").images.device
        device(type='meta')
        """
        images, labels = self.images.to(device), self.labels.to(device)
        return GreyImages(images, labels, self.classes)

    def __repr__(self) -> str:
        return f"{len(self):,} gray images of {len(self.classes)} classes"

    def _repr_html_(self) -> str:
        from PIL.Image import fromarray

        pixels = self.images[:, 0].cpu().numpy()
        return show_classes(self, self.labels.tolist(), lambda i: fromarray(pixels[i]))


def draw_chunk(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw chunk `number` of the images: uint8 (100, 28, 28), and their uint8 labels.

    >>> images, labels = draw_chunk(0)
    >>> images.shape, images.dtype.name, "".join(LETTERS[i] for i in labels[:5])
    ((100, 28, 28), 'uint8', 'QQGOO')
    """
    random = np.random.RandomState(number)
    # As many of each class, in any order.
    labels = random.permutation(np.arange(CHUNK, dtype=np.uint8) % len(LETTERS))

    def pick(low: float, high: float) -> np.ndarray:
        numbers = low + (high - low) * random.random_sample(CHUNK)
        return numbers.astype(np.float32)

    def pick_direction(widest: float) -> tuple[np.ndarray, np.ndarray]:
        """Return angles' cosines and sines; `widest` is the tangent of half of one."""
        tangent = pick(-widest, widest)
        square = tangent * tangent
        return (1 - square) / (1 + square), 2 * tangent / (1 + square)

    # Arrays are height × width × images: what is one number per image comes last.
    across = np.arange(SIDE, dtype=np.float32)[None, :, None] - (SIDE - 1) / 2
    down = across.transpose(1, 0, 2)
    x, y = across - pick(-2, 2), down - pick(-2, 2)

    # From a pixel to the cell of the letter's map that it shows.
    cosine, sine = pick_direction(0.15)
    slant, bend = pick(-0.2, 0.2), pick(-0.2, 0.2) / _UNIT
    high = _UNIT / pick(9, 12)
    wide = high / pick(0.8, 1.2)
    v = x * (-sine * high) + y * (cosine * high)
    u = x * (cosine * wide) + y * (sine * wide) + (slant + bend * v) * v
    row, column = (np.clip(w + _CELLS // 2, 0, _CELLS - 1).astype(int) for w in (v, u))
    distance = _measure_distances()[labels, row, column]

    # Bright ink on a dark ground, with a strip of paper stuck over it; then light from
    # one side, and a camera's grain.
    ground, ink, strip = pick(0, 40), pick(200, 255), pick(0, 255)
    image = np.clip(pick(2, 3.5) - distance, 0, 1) * (ink - ground) + ground
    cosine, sine = pick_direction(1)
    beside = np.abs(across * cosine + (down * sine - pick(-8, 8)))
    cover = np.clip(pick(0, 5) - beside, 0, 1)
    image += (strip - image) * cover
    image += across * pick(-1, 1) + down * pick(-1, 1)
    grain = np.frombuffer(random.bytes(image.size), np.int8).reshape(image.shape)
    image += grain * (pick(0, 60) / 128)
    pixels = np.clip(image, 0, 255).astype(np.uint8)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)), labels


@functools.cache
def _measure_distances() -> np.ndarray:
    """Return the letters' maps: float32 (10, 128, 128), pixels from a cell to ink."""
    x = (np.arange(_CELLS) - (_CELLS - 1) / 2) / _UNIT
    maps = []
    for strokes in STROKES.values():
        lines = [line for points in map(_join, strokes) for line in pairwise(points)]
        # Of start and end: across and down, each lines × 1 × 1, beside the map's cells.
        start, end = np.array(lines).transpose(1, 2, 0)[..., None, None]
        right, down = end - start
        aside, below = x - start[0], x[:, None] - start[1]
        reached = (aside * right + below * down) / (right * right + down * down)
        reached = np.clip(reached, 0, 1)
        aside, below = aside - reached * right, below - reached * down
        squares = aside * aside + below * below
        maps.append(np.sqrt(squares.min(axis=0)) * _HEIGHT)
    return np.stack(maps).astype(np.float32)


def _join(stroke: str) -> np.ndarray:
    """Return the points of a stroke, those of a curve with its corners cut off thrice.

    (Chaikin's algorithm: https://en.wikipedia.org/wiki/Chaikin%27s_algorithm.)
    """
    kind, *names = stroke.split()
    # A letter is 2 high and 1.4 wide, around its middle.
    points = np.array([((int(x) - 2) * 0.35, (int(y) - 3) / 3) for x, y in names])
    for _ in range(0 if kind == "lines" else 3):
        following = np.roll(points, -1, axis=0)
        near = points * 0.75 + following * 0.25
        far = points * 0.25 + following * 0.75
        cut = np.stack([near, far], axis=1).reshape(-1, 2)
        # An open curve has no corner between its ends, which stay.
        points = cut if kind == "loop" else np.vstack([points[0], cut[:-2], points[-1]])
    return np.vstack([points, points[0]]) if kind == "loop" else points
