"""Where what the kit keeps lies, and how it gets there: whole, or not at all."""

from __future__ import annotations

import base64
import html
import io
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kit import figures
from kit.errors import DataError
from kit.progress import Progress


def cache_folder() -> Path:
    """Return the folder for what the kit keeps; it need not exist yet.

    The environment variable KIT_CACHE names it. Without, it is `training-speed-kit` in
    $XDG_CACHE_HOME or ~/.cache.

    >>> cache_folder().is_absolute()
    True
    """
    usual = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    chosen = os.environ.get("KIT_CACHE") or f"{usual}/training-speed-kit"
    return Path(chosen).expanduser().absolute()


def keep(name: str, make: Callable[[Path], None], *, megabytes: int) -> Path:
    """Return the file or folder `name` in the cache; where it is missing, make it.

    `make(path)` writes it elsewhere, and it appears under its name when it is complete:
    several processes may ask at once. `name` holds a version, which counts up when what
    is made changes. Raises DataError where it cannot be written.
    """
    home = cache_folder()
    place = home / name
    try:
        if not place.exists():
            home.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=home, prefix=".") as folder:
                make(Path(folder, name))
                Path(folder, name).replace(place)
    except OSError as error:
        if not os.path.exists(place):  # what another process made is as good
            raise DataError(
                f"cannot keep {name} in {home}: {error.strerror or error}.\n"
                f"It needs {megabytes} MB in a writable folder: set KIT_CACHE=<a "
                "writable folder>, and try again."
            ) from error
    return place


def draw_all(draw: Callable[[int], Any], numbers: range, what: str) -> list[Any]:
    """Return draw(number) for all numbers, drawn on all cores, with progress."""
    from concurrent.futures import ThreadPoolExecutor  # here, for a short import

    made, pool = [], ThreadPoolExecutor()
    with Progress(what) as progress:
        progress.doing = "drawing them, once"
        try:
            for drawn in pool.map(draw, numbers):
                made.append(drawn)
                progress.show(len(made) / len(numbers))
        finally:
            pool.shutdown(cancel_futures=True)  # waits for those under way
    return made


def show_classes(dataset: Any, labels: list[int], find: Callable[[int], Any]) -> str:
    """Return HTML with the first image of each class, of ten at most.

    `find(index)` returns the PIL image of a sample.
    """
    shown = [figures.html_sentence(repr(dataset))]
    for label in sorted(set(labels))[:10]:
        jpeg = io.BytesIO()
        find(labels.index(label)).resize((96, 96)).save(jpeg, "JPEG", quality=80)
        source = base64.b64encode(jpeg.getvalue()).decode()
        name = html.escape(dataset.classes[label])
        shown.append(
            '<span style="display:inline-block;margin-right:8px">'
            f'<img alt="image: {name}" width="64" height="64" '
            f'src="data:image/jpeg;base64,{source}"><br>{name}</span>'
        )
    return "".join(shown)
