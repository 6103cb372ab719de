"""Fashion-MNIST, where the reader has it."""

import gzip
import os
import pathlib
import shutil
import zlib

from kit.data.images import GreyImages
from kit.data.storage import DataError, choose_folder, open_whole

PAGE = "https://github.com/zalandoresearch/fashion-mnist"


def fashion_mnist(
    train: bool = True, *, folder: str | os.PathLike[str] | None = None
) -> GreyImages:
    """Read Fashion-MNIST from its files, without ever downloading them.

    60 000 images to train on, or 10 000 to test with: grey, 28 × 28 pixels, of ten
    kinds of clothes, as `kit.data.glyphs` has letters. The four files lie where
    torchvision keeps them, in `FashionMNIST/raw` below `folder`, by default the cache
    folder; one that ends in .gz is unpacked beside. Raises DataError where files are
    missing, the message says which, or cannot be read.

    >>> fashion_mnist(folder="no such folder")
    Traceback (most recent call last):
    kit.data.storage.DataError: fashion_mnist(): 4 of its files are missing in ...
    """
    from torchvision.datasets import FashionMNIST

    home = choose_folder(folder)
    raw = home / "FashionMNIST" / "raw"
    missing = []
    for name, _ in FashionMNIST.resources:
        packed, plain = raw / name, raw / name.removesuffix(".gz")
        if not plain.exists() and packed.exists():
            _unpack(packed, plain)
        if not plain.exists():
            missing.append(name)
    if missing:
        raise DataError(
            f"fashion_mnist(): {len(missing)} of its files are missing in {raw}:\n"
            f"{', '.join(missing)}.\n"
            f"Nothing is downloaded here. The data set's page, {PAGE},\n"
            "links them: put them there, packed (.gz) or unpacked. Or take\n"
            "kit.data.glyphs(), images of the same shape, which are drawn here."
        )
    try:
        kept = FashionMNIST(home, train=train, download=False)
        images, labels = kept.data[:, None], kept.targets
        if images.shape[1:] != (1, 28, 28) or len(images) != len(labels):
            counts = f"{len(labels)} labels for images {tuple(kept.data.shape)}"
            raise ValueError(f"{counts}, not for as many of 28 × 28 pixels")
    except Exception as error:  # torchvision asserts, unpacks and reshapes
        part = "train" if train else "t10k"
        raise DataError(
            f"fashion_mnist(train={train}): cannot read the IDX files {part}-* in "
            f"{raw}: {str(error) or type(error).__name__}.\n"
            f"Get them anew from the data set's page, {PAGE}."
        ) from error
    return GreyImages(images, labels, tuple(kept.classes))


def _unpack(packed: pathlib.Path, plain: pathlib.Path) -> None:
    try:
        with gzip.open(packed) as source, open_whole(plain) as target:
            shutil.copyfileobj(source, target)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"fashion_mnist(): cannot unpack {packed}: {error}.\n"
            f"Unpack it yourself, or get it anew from the data set's page, {PAGE}."
        ) from error
