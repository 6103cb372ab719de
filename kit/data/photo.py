"""Photos made of exact arithmetic on NumPy's frozen generator: alike everywhere."""

from __future__ import annotations

import functools
import io
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kit import figures
from kit.data.cache import draw_all, keep, show_classes
from kit.errors import DataError
from kit.mode import is_quick

VERSION = 1  # count up when the pictures change, or caches keep the old ones
SIZE = 400  # height and width of a drawn photo, in pixels
MOST_IN_QUICK_MODE = 128  # photos are enough to see that a chapter runs
# In the order of the alphabet: so ImageFolder gives them the same labels.
CLASSES = ("circle", "crescent", "cross", "diamond", "hexagon")
CLASSES += ("ring", "square", "star", "stripes", "triangle")
# The texture's octaves: cells across, and how strong. Each doubles the one before:
# s cells become 2 s - 2, of which the next octave needs no more than it names.
OCTAVES = ((4, 128), (6, 70), (9, 48), (15, 32), (27, 24))
OCTAVES += ((52, 18), (102, 14), (201, 12), (SIZE, 10))
# Shapes with straight edges: how far these lie from the middle, in percent of the
# radius, and the directions that they face, in 1/1024.
EDGES = {
    "diamond": (45, (470, 910), (-470, 910)),
    "hexagon": (87, (1024, 0), (512, 887), (-512, 887)),
    "square": (70, (1024, 0), (0, 1024)),
    "star": (30, (0, 1024), (974, 316), (602, -828), (-602, -828), (-974, 316)),
    "triangle": (50, (887, 512), (-887, 512), (0, -1024)),
}


def photos(n: int = 1024) -> Path:
    """Draw n photos once, as JPEG files in one folder per class, and return the folder.

    Each has 400 × 400 pixels and 40–80 kB; photo i shows class i modulo 10. They lie in
    the cache folder, in a folder for this n. With KIT_QUICK=1 they are 128 at most.
    Raises ValueError for n < 10, DataError where they cannot be written.

    >>> sorted(path.name for path in photos(20).iterdir())[:3]
    ['circle', 'crescent', 'cross']
    """
    if n < len(CLASSES):
        raise ValueError(f"photos(n={n}): n must be at least 10, one photo per class")
    n = min(n, MOST_IN_QUICK_MODE) if is_quick() else n

    def make(folder: Path) -> None:
        draw_all(functools.partial(_write_photo, folder), range(n), f"{n:,} photos")

    return keep(f"photos-{n}-v{VERSION}", make, megabytes=n // 16 + 1)


class PhotoDataset:
    """Read labelled photos from a folder with one folder of .jpg files per class.

    `dataset[i]` is (image, label): a uint8 tensor channels × height × width, or what
    `transform` makes of the PIL image in RGB; the label is the class's number in
    `classes`, by the alphabet. `folder=None` draws `photos()`. Raises DataError where
    there are no photos or one cannot be read.

    >>> PhotoDataset(photos(20), transform=lambda image: image.size)[13]
    ((400, 400), 6)
    """

    def __init__(self, folder: str | Path | None = None, transform: Any = None) -> None:
        # Imported here, or every worker process would have to do it again.
        from torchvision.transforms.v2.functional import pil_to_tensor

        folder = photos() if folder is None else Path(folder)
        paths = sorted(folder.glob("[!.]*/*.jpg"))  # Jupyter leaves .ipynb_checkpoints
        self.transform = transform or pil_to_tensor
        self.classes = sorted({path.parent.name for path in paths})
        self.samples = [(str(p), self.classes.index(p.parent.name)) for p in paths]
        if not self.samples:
            raise DataError(
                f"no photos in {folder}: expected a folder of JPEG files for each "
                f"class, as in {folder / 'cat' / '1.jpg'}"
            )

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.transform(self._read(index)), self.samples[index][1]

    def _read(self, index: int) -> Any:
        import PIL.Image

        path, _ = self.samples[index]
        try:
            with PIL.Image.open(path) as file:
                return file.convert("RGB")
        except Exception as error:  # decoders raise whatever they like
            raise DataError(
                f"cannot read photo {index}, {path}: {error}.\n"
                "Remove or replace this file, then make the data set again."
            ) from error

    def __repr__(self) -> str:
        return f"{len(self):,} photos of {len(self.classes)} classes"

    def _repr_html_(self) -> str:
        return show_classes(self, [label for _, label in self.samples], self._read)


class Distant:
    """Read a data set as if its samples lay far away: each takes `seconds` longer.

    The wait is a sleep before the sample is read, as the latency of a request to a
    store is: it needs no core, so several workers can wait at once. It goes wherever
    its data set can be pickled to.

    >>> distant = Distant([("a photo", 0), ("another", 1)], seconds=0.001)
    >>> len(distant), distant[1]
    (2, ('another', 1))
    """

    def __init__(self, dataset: Any, seconds: float) -> None:
        self.dataset, self.seconds = dataset, seconds

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds)
        return self.dataset[index]

    def __repr__(self) -> str:
        away = figures.format_seconds(self.seconds)
        return f"{self.dataset!r}, each {away} away"


def _write_photo(folder: Path, index: int) -> None:
    import PIL.Image

    pixels, label = draw_photo(index)
    jpeg = io.BytesIO()  # not a file: Pillow would not say why writing failed
    PIL.Image.fromarray(pixels).save(jpeg, "JPEG", quality=90)
    path = folder / CLASSES[label] / f"{index:06d}.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(jpeg.getvalue())


def draw_photo(index: int) -> tuple[np.ndarray, int]:
    """Draw photo number `index`: its uint8 pixels (400, 400, 3) and its label.

    >>> pixels, label = draw_photo(12)
    >>> pixels.shape, pixels.dtype.name, CLASSES[label]
    ((400, 400, 3), 'uint8', 'cross')
    """
    random = np.random.RandomState(index)
    label = index % len(CLASSES)
    cloth = _draw_texture(random)

    def pick(low: int, high: int, count: int) -> list[int]:
        return random.randint(low, high, count, dtype=np.int64).tolist()

    # Lengths are in 1/8 pixel from the shape's middle, directions in 1/1024. The shape
    # is turned by two odd numbers, because they are never zero.
    radius, centre_x, centre_y = pick(80, 131, 1) + pick(145, 256, 2)
    x = (np.arange(SIZE, dtype=np.int64)[None, :] - centre_x) * 8
    y = (np.arange(SIZE, dtype=np.int64)[:, None] - centre_y) * 8
    right, down = (2 * number + 1 for number in pick(-64, 64, 2))
    length = math.isqrt((right**2 + down**2) << 16)
    cosine, sine = (right << 18) // length, (down << 18) // length

    def along(u: int, v: int) -> np.ndarray:
        right, down = u * cosine - v * sine, u * sine + v * cosine
        return (x * right >> 20).astype(np.int16) + (y * down >> 20).astype(np.int16)

    distance = _measure_distance(CLASSES[label], along, radius * 8)
    coverage = np.clip(4 - distance, 0, 8)

    # A bright thing on a dark ground of two colours, or the reverse, with its shadow.
    dark, bright = (0, 100), (115, 256)
    ground, thing = (dark, bright) if pick(0, 2, 1)[0] else (bright, dark)
    colours = [pick(*ground, 3), pick(*ground, 3), pick(*thing, 3)]
    blend = np.clip(cloth[::-1] + 64, 0, 128)
    shadow = np.clip((np.roll(distance, pick(6, 22, 2), (0, 1)) >> 1) + 88, 64, 128)
    relief = (cloth.T >> 2) - (x + y >> 5).astype(np.int16)

    # Light from somewhere, and a camera's grain.
    light = np.clip(along(*pick(-10, 11, 2)) + (cloth >> 3) + 110, 64, 150)
    grain = np.diff(cloth, axis=1, prepend=cloth[:, :1])
    pixels = np.empty((SIZE, SIZE, 3), np.uint8)
    for channel, (one, other, own) in enumerate(zip(*colours, strict=True)):
        behind = one + ((other - one) * blend >> 7) + (cloth >> 2)
        behind = np.clip(behind, 0, 255) * shadow >> 7
        mixed = behind + ((own + relief - behind) * coverage >> 3)
        lit = np.clip(mixed, 0, 210) * light >> 7
        pixels[..., channel] = np.clip(lit + grain, 0, 255)
    return pixels, label


def _draw_texture(random: np.random.RandomState) -> np.ndarray:
    """Draw clouds: noise, made twice as fine again and again, with new noise added."""
    grid = np.zeros((3, 3), np.int16)
    for size, strength in OCTAVES:
        for _ in range(2):  # down, then across
            near, far = grid[:-1], grid[1:]
            finer = np.stack([3 * near + far, near + 3 * far], axis=1) >> 2
            grid = finer.reshape(-1, grid.shape[1])[:size].T
        noise = np.frombuffer(random.bytes(size * size), np.int8).reshape(size, size)
        grid = grid + (noise.astype(np.int16) * strength >> 7)
    return grid


def _measure_distance(
    shape: str, along: Callable[[int, int], np.ndarray], radius: int
) -> np.ndarray:
    """Return how far each pixel is outside the shape's edge, inside below zero.

    `along(u, v)` is how far each lies from the shape's middle in this direction.
    """
    if shape in EDGES:
        percent, *edges = EDGES[shape]
        passed = [along(*edge) for edge in edges]
        if shape in ("diamond", "hexagon", "square"):
            passed = np.abs(passed)  # an edge on the other side, too
        # Inside a star is what has passed at most one of its five lines.
        last = -2 if shape == "star" else -1
        return np.sort(passed, axis=0)[last] - radius * percent // 100
    u, v = along(1024, 0), along(0, 1024)

    def measure_circle(u: np.ndarray) -> np.ndarray:
        # Exact: the squares are below 2**24, and every machine rounds roots alike.
        squares = np.square(u, dtype=np.float32) + np.square(v, dtype=np.float32)
        return np.sqrt(squares).astype(np.int16) - radius

    if shape == "circle":
        return measure_circle(u)
    if shape == "crescent":
        bite = measure_circle(u - radius // 2) + radius // 8
        return np.maximum(measure_circle(u), -bite)
    if shape == "ring":
        return np.abs(measure_circle(u) + radius // 4) - radius // 4
    wide, high, thin = np.abs(u), np.abs(v), radius * 3 // 10
    if shape == "cross":
        upright = np.maximum(wide - thin, high - radius)
        return np.minimum(upright, np.maximum(wide - radius, high - thin))
    step = radius * 2 // 5  # stripes
    stripe = np.abs(v % step - step // 2) - step // 4
    return np.maximum(stripe, np.maximum(wide, high) - radius * 7 // 10)
