"""Where what the kit keeps lies, and what is drawn there."""

from __future__ import annotations

import contextlib
import io
import operator
import os
import pathlib
import shutil
import sys
import time
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from kit.data import lettering
from kit.data.drawing import CLASSES, VERSION, draw_photo
from kit.data.images import GreyImages
from kit.progress import Progress


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


def choose_folder(folder: str | os.PathLike[str] | None) -> pathlib.Path:
    """Return the folder that was asked for, the cache folder where none was.

    >>> choose_folder("here").name
    'here'
    """
    return cache_folder() if folder is None else pathlib.Path(folder)


@contextlib.contextmanager
def open_whole(place: pathlib.Path) -> Iterator[BinaryIO]:
    """Open a file for writing that appears in its place once it is complete.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with open_whole(pathlib.Path(folder, "file")) as file:
    ...         os.listdir(folder) == ["file"]
    ...     os.listdir(folder)
    False
    ['file']
    """
    writing = place.with_name(f".{place.name}-{os.urandom(4).hex()}")
    try:
        with open(writing, "xb") as file:
            yield file
        writing.replace(place)
    finally:
        with contextlib.suppress(OSError):
            writing.unlink()


def photos(
    n: int = 1024, *, folder: str | os.PathLike[str] | None = None
) -> pathlib.Path:
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
    home = choose_folder(folder)
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
    pool = ThreadPoolExecutor(_count_cores())
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


def glyphs(
    train: bool = True, *, folder: str | os.PathLike[str] | None = None
) -> GreyImages:
    """Draw grey images of ten letters once, and return them as a data set in memory.

    60,000 images to train on, or 10,000 to test with: 28 × 28 pixels, as many of each
    letter, in no order; written by many hands, and partly hidden by a strip of paper.
    They are the same everywhere, whatever the random state. They lie in `folder`, by
    default the cache folder, in a file for each part. That appears when it is complete,
    so several processes may ask at once. Raises DataError where it cannot be written or
    read.

    >>> dataset = glyphs(train=False)
    >>> image, label = dataset[0]
    >>> image.shape, dataset.classes[label]
    (torch.Size([1, 28, 28]), 'J')
    """
    import torch

    part, chunks = ("train", range(600)) if train else ("test", range(600, 700))
    home = choose_folder(folder)
    place = home / f"glyphs-{part}-v{lettering.VERSION}.npz"
    try:
        home.mkdir(parents=True, exist_ok=True)
        if not place.exists():
            images, labels = _draw_chunks(chunks)
            with open_whole(place) as file:
                np.savez(file, images=images, labels=labels)
    except OSError as error:
        raise DataError(
            f"cannot keep glyphs({train=}) in {home}: {error.strerror or error}.\n"
            f"They need {len(chunks) * 80 // 1000 + 1} MB in a folder that can be "
            "written: set KIT_CACHE=<such a folder>, or pass folder=, and try again."
        ) from error
    try:
        with np.load(place) as kept:
            images = torch.from_numpy(kept["images"])
            labels = torch.from_numpy(kept["labels"])
    except Exception as error:  # a broken archive raises whatever it likes
        raise DataError(
            f"cannot read {place}: {error}.\nRemove this file: then it is drawn again."
        ) from error
    return GreyImages(images, labels.long(), lettering.LETTERS)


def _draw_chunks(chunks: range) -> tuple[np.ndarray, np.ndarray]:
    """Draw chunks of letters; tell how long where it takes over 2 s."""
    from concurrent.futures import ThreadPoolExecutor

    size = lettering.CHUNK
    images = np.empty((len(chunks) * size, 1, lettering.SIDE, lettering.SIDE), np.uint8)
    labels = np.empty(len(images), np.uint8)
    pool = ThreadPoolExecutor(_count_cores())
    with Progress(f"drawing {len(images):,} images, once") as progress:
        progress.doing = "drawing"
        progress.begin(0, 1)
        try:
            drawn = pool.map(lettering.draw_chunk, chunks)
            for done, (pixels, classes) in enumerate(drawn, start=1):
                place = slice((done - 1) * size, done * size)
                images[place, 0], labels[place] = pixels, classes
                progress.hear()
                progress.expect(done / len(chunks))
        finally:
            pool.shutdown(cancel_futures=True)  # waits for those under way
    return images, labels


def _count_cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
