"""Where what the kit keeps lies, and the photos there."""

import io
import operator
import os
import pathlib
import shutil
import sys
import time

from kit.data.drawing import CLASSES, VERSION, draw_photo


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
