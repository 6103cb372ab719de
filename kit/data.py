"""Photos to train on, drawn on this machine: nothing is downloaded.

>>> from kit.data import PhotoDataset, photos
>>> dataset = PhotoDataset(photos(20))
>>> image, label = dataset[0]
>>> image.shape, dataset.classes[label]
(torch.Size([3, 400, 400]), 'circle')
"""

from __future__ import annotations

import io
import math
import operator
import os
import pathlib
import shutil
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kit import figures

if TYPE_CHECKING:
    import numpy as np
    import PIL.Image

SIZE = 400  # height and width of a drawn photo, in pixels
# In the order of the alphabet: so ImageFolder gives them the same labels.
CLASSES = ("circle", "crescent", "cross", "diamond", "hexagon")
CLASSES += ("ring", "square", "star", "stripes", "triangle")
VERSION = 1  # count up when the pictures change, or caches keep the old ones
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
AnyPath = str | os.PathLike[str]


class DataError(RuntimeError):
    """Name the data that cannot be made or read, the reason and what to do next."""


def cache_folder() -> pathlib.Path:
    """Return the folder for what the kit keeps; it need not exist yet.

    The environment variable KIT_CACHE names it. Without, it is `training-speed-kit` in
    the user's cache folder. Raises DataError where the user has no home folder.

    >>> cache_folder().is_absolute()
    True
    """
    try:
        if chosen := os.environ.get("KIT_CACHE"):
            return pathlib.Path(chosen).expanduser().absolute()
        home = pathlib.Path.home()
    except RuntimeError as error:
        raise DataError(f"no cache folder: {error} Set KIT_CACHE=<a folder>.") from None
    if sys.platform == "win32":
        base = pathlib.Path(os.environ.get("LOCALAPPDATA") or home / "AppData/Local")
    elif sys.platform == "darwin":
        base = home / "Library/Caches"
    else:
        base = pathlib.Path(os.environ.get("XDG_CACHE_HOME", ""))
        if not base.is_absolute():  # which the XDG specification says to ignore
            base = home / ".cache"
    return base / "training-speed-kit"


def photos(n: int = 1024, *, folder: AnyPath | None = None) -> pathlib.Path:
    """Draw n photos once, as JPEG files in one folder per class, and return the folder.

    Each has 400 × 400 pixels and 40–80 KB; photo i shows class i modulo 10. They lie in
    `folder`, by default the cache folder, in a subfolder for this n. That appears when
    it is complete, so several processes may ask at once. Raises ValueError for n < 10,
    DataError where the folder cannot be written.

    >>> sorted(path.name for path in photos(20).iterdir())[:3]
    ['circle', 'crescent', 'cross']
    """
    n = operator.index(n)
    if n < len(CLASSES):
        raise ValueError(f"photos(n={n}): n is at least 10, one photo for each class")
    home = cache_folder() if folder is None else pathlib.Path(folder)
    place = home / f"photos-{n}-v{VERSION}"
    drawing = home / f".{place.name}-{os.urandom(4).hex()}"
    try:
        if place.is_dir():
            return place
        for name in CLASSES:
            (drawing / name).mkdir(parents=True)
        _draw_files(n, drawing)
        drawing.replace(place)
    except OSError as error:
        # A folder in place was drawn by another process meanwhile: it is as good.
        if not os.path.isdir(place):
            raise DataError(
                f"cannot draw {n} photos in {home}: {error.strerror or error}.\n"
                f"They need {n * 64 // 1024 + 1} MB in a folder that can be written: "
                "set KIT_CACHE=<such a folder>, or pass folder=, and try again."
            ) from error
    finally:
        shutil.rmtree(drawing, ignore_errors=True)
    return place


def _draw_files(n: int, folder: pathlib.Path) -> None:
    """Draw n photos into the class folders; tell how long where it takes over 2 s."""
    from concurrent.futures import ThreadPoolExecutor  # here, for a short import

    import PIL.Image

    def draw_file(index: int) -> None:
        pixels, label = draw_photo(index)
        encoded = io.BytesIO()  # not a file: Pillow would not say why writing failed
        PIL.Image.fromarray(pixels).save(encoded, "JPEG", quality=90)
        path = folder / CLASSES[label] / f"{index:06d}.jpg"
        path.write_bytes(encoded.getvalue())

    draw_file(0)  # before the clock starts, because the first one loads libraries
    affinity = getattr(os, "sched_getaffinity", None)
    pool = ThreadPoolExecutor(len(affinity(0)) if affinity else os.cpu_count())
    live, shown, started = sys.stderr.isatty(), False, time.monotonic()
    try:
        for done, _ in enumerate(pool.map(draw_file, range(1, n)), start=1):
            left = (time.monotonic() - started) / done * (n - done)
            if done % 32 == 0 and (live if shown else left > 2):
                line = f"drawing {n} photos (once; about {left:.0f} s)"
                print(line, end=" \r" if live else "\n", file=sys.stderr, flush=True)
                shown = True
    finally:
        pool.shutdown(cancel_futures=True)  # waits for those under way
    if live and shown:
        print(file=sys.stderr)


def draw_photo(index: int) -> tuple[np.ndarray, int]:
    """Draw photo number `index`: its uint8 pixels (400, 400, 3) and its label.

    All is exact arithmetic on NumPy's frozen generator, so that the pixels are the
    same on every machine.

    >>> pixels, label = draw_photo(12)
    >>> pixels.shape, pixels.dtype.name, CLASSES[label]
    ((400, 400, 3), 'uint8', 'cross')
    """
    import numpy as np

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
    import numpy as np

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
    import numpy as np

    def measure_circle(u: np.ndarray, v: np.ndarray) -> np.ndarray:
        # Exact: the squares are below 2**24, and every machine rounds roots alike.
        squares = np.square(u, dtype=np.float32) + np.square(v, dtype=np.float32)
        return np.sqrt(squares).astype(np.int16) - radius

    if shape in EDGES:
        percent, *edges = EDGES[shape]
        first = second = np.full((SIZE, SIZE), -(2**15), np.int16)
        for edge in edges:
            passed = along(*edge)
            if shape not in ("star", "triangle"):
                passed = np.abs(passed)  # an edge on the other side, too
            second = np.maximum(second, np.minimum(first, passed))
            first = np.maximum(first, passed)
        # Inside a star is what has passed at most one of its five lines.
        return (second if shape == "star" else first) - radius * percent // 100
    u, v = along(1024, 0), along(0, 1024)
    if shape == "circle":
        return measure_circle(u, v)
    if shape == "crescent":
        bite = measure_circle(u - radius // 2, v) + radius // 8
        return np.maximum(measure_circle(u, v), -bite)
    if shape == "ring":
        return np.abs(measure_circle(u, v) + radius // 4) - radius // 4
    wide, high, thin = np.abs(u), np.abs(v), radius * 3 // 10
    if shape == "cross":
        upright = np.maximum(wide - thin, high - radius)
        return np.minimum(upright, np.maximum(wide - radius, high - thin))
    step = radius * 2 // 5
    stripe = np.abs(v % step - step // 2) - step // 4
    return np.maximum(stripe, np.maximum(wide, high) - radius * 7 // 10)


class PhotoDataset:
    """Read labelled photos from a folder with one folder of images per class.

    `dataset[i]` is (image, label): a uint8 tensor channels × height × width, or what
    `transform` makes of the PIL image in RGB; the label is the class's number in
    `classes`, by the alphabet. `folder=None` draws `photos()`. Raises DataError where
    there are no photos or one cannot be read.

    >>> PhotoDataset(photos(20), transform=lambda image: image.size)[13]
    ((400, 400), 6)
    """

    def __init__(
        self,
        folder: AnyPath | None = None,
        transform: Callable[[PIL.Image.Image], Any] | None = None,
    ) -> None:
        # Imported here, or every worker process would have to do it again.
        from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset
        from torchvision.transforms.v2.functional import pil_to_tensor

        self.folder = photos() if folder is None else pathlib.Path(folder)
        self.transform = pil_to_tensor if transform is None else transform
        found = self.folder.iterdir() if self.folder.is_dir() else ()
        # A dot hides what is no class: Jupyter leaves .ipynb_checkpoints.
        self.classes = sorted(p.name for p in found if p.is_dir() and p.name[0] != ".")
        labels = {name: label for label, name in enumerate(self.classes)}
        self.samples = labels and make_dataset(
            self.folder, labels, IMG_EXTENSIONS, allow_empty=True
        )
        if not self.samples:
            raise DataError(
                f"no photos in {self.folder}: expected a folder for each class, with "
                f"images in it, such as {self.folder / 'cat' / '1.jpg'}.\n"
                "PhotoDataset() without a folder draws its own."
            )

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        import PIL.Image

        path, label = self.samples[index]
        try:
            with PIL.Image.open(path) as file:
                image = file.convert("RGB")
        except Exception as error:  # decoders raise whatever they like
            raise DataError(
                f"cannot read photo {index}, {path}: {error}.\n"
                "Remove or replace this file, then make the data set again."
            ) from error
        return self.transform(image), label

    def __repr__(self) -> str:
        return f"{len(self)} photos of {len(self.classes)} classes in {self.folder}"

    def _repr_html_(self) -> str:
        """Show one photo of each of the first ten classes."""
        first: dict[int, str] = {}
        for path, label in self.samples:
            first.setdefault(label, str(path))
        shown = [(self.classes[i], path) for i, path in sorted(first.items())[:10]]
        count = f"{len(self):,} photos of {len(self.classes)} classes"
        pictures = [(name, _make_thumbnail(path)) for name, path in shown]
        return figures.html_pictures(pictures, caption=count)


def _make_thumbnail(path: str) -> bytes:
    import PIL.Image

    with PIL.Image.open(path) as file:
        image = file.convert("RGB")
    image.thumbnail((96, 96))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=80)
    return buffer.getvalue()
