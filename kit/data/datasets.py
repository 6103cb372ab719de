"""Data sets that read files."""

from __future__ import annotations

import io
import math
import os
import pathlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kit import figures
from kit.data.storage import DataError, photos

if TYPE_CHECKING:
    import PIL.Image


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
        folder: str | os.PathLike[str] | None = None,
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
        return f"{len(self):,} photos of {len(self.classes)} classes"

    def _repr_html_(self) -> str:
        """Show one photo of each of the first ten classes."""
        first = {label: path for path, label in reversed(self.samples)}
        shown = [(self.classes[i], path) for i, path in sorted(first.items())[:10]]
        count = f"{len(self):,} photos of {len(self.classes)} classes"
        pictures = [(name, _make_thumbnail(path)) for name, path in shown]
        return figures.html_pictures(pictures, caption=count)


class Distant:
    """Read a data set as if its samples lay far away: each takes `seconds` longer.

    The wait is a sleep before the sample is read, as the latency of a request to a
    store is: it needs no core, so several workers can wait at once. It goes wherever
    its data set can be pickled to. Raises ValueError for a time that cannot be waited.

    >>> distant = Distant([("a photo", 0), ("another", 1)], seconds=0.001)
    >>> len(distant), distant[1]
    (2, ('another', 1))
    """

    def __init__(self, dataset: Any, seconds: float) -> None:
        if not 0 <= seconds < math.inf:
            raise ValueError(
                f"Distant(seconds={seconds!r}): a latency is a finite time, 0 or more, "
                "in seconds: 0.005 is 5 ms"
            )
        self.dataset, self.seconds = dataset, seconds

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds)
        return self.dataset[index]

    def __repr__(self) -> str:
        away = figures.format_seconds(self.seconds)
        return f"{self.dataset!r}, each {away} away"


def _make_thumbnail(path: str) -> bytes:
    import PIL.Image

    with PIL.Image.open(path) as file:
        image = file.convert("RGB")
    image.thumbnail((96, 96))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=80)
    return buffer.getvalue()
