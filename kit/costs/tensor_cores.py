"""A matrix product on a device that works in tiles, and in waves of tiles."""

from __future__ import annotations

import math
from typing import NamedTuple


class MatrixProduct(NamedTuple):
    """How a matrix product fills a device: its tiles, its waves, and what is useful.

    `in_tiles` is the share of the tiles' area that the result has, `in_waves` the share
    of the processors' turns that have a tile; `seconds` is None for an unknown peak.
    """

    tiles: int
    waves: int
    in_tiles: float
    in_waves: float
    seconds: float | None = None

    @property
    def utilisation(self) -> float:
        """The share of the arithmetic that is useful: in tiles, and in waves.

        >>> MatrixProduct(tiles=2, waves=1, in_tiles=0.5, in_waves=0.5).utilisation
        0.25
        """
        return self.in_tiles * self.in_waves


def predict_matmul(
    m: int,
    n: int,
    k: int,
    *,
    tile: tuple[int, int] = (128, 256),
    processors: int = 132,
    peak: float | None = None,
) -> MatrixProduct:
    """Predict tiles, waves and utilisation of an m × k by k × n matrix product.

    The result is cut into tiles of `tile` rows × columns, and each of the device's
    `processors` computes one tile at a time. A tile that sticks out beyond the result
    takes as long as a full one (tile quantisation), and so does the last wave, of as
    many tiles as there are processors, however few it has (wave quantisation):
    tiles = ⌈m / rows⌉ · ⌈n / columns⌉ and waves = ⌈tiles / processors⌉. `peak`, in
    FLOP/s of the whole device, gives the seconds, waves · processors · rows · columns ·
    2 k / peak: a lower bound, without memory, launches and choosing another tile.

    132 processors are those of an H100 SXM and of an H200; an A100 has 108. Libraries
    choose among several tiles; 128 × 256 is the largest of the usual ones.

    Source: NVIDIA, "Matrix Multiplication Background User's Guide",
    https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/

    Raises ValueError for sizes below 1 and for a peak that is not above 0.

    >>> predict_matmul(128 * 12, 256 * 11, 4096)
    MatrixProduct(tiles=132, waves=1, in_tiles=1.0, in_waves=1.0, seconds=None)
    >>> predict_matmul(128 * 12, 256 * 11 + 1, 4096).waves
    2
    >>> predict_matmul(64, 256, 1000, processors=1, peak=1e9).seconds
    0.065536
    """
    rows, columns = tile
    given = {"m": m, "n": n, "k": k, "processors": processors}
    given |= {"tile's rows": rows, "tile's columns": columns}
    for name, size in given.items():
        if not 1 <= size < math.inf or size != int(size):
            raise ValueError(
                f"predict_matmul(): {name} = {size} is not a whole number above 0"
            )
    if peak is not None and not 0 < peak < math.inf:
        raise ValueError(
            f"predict_matmul(): peak={peak} is not above 0. Give the device's FLOP/s, "
            "or leave it out"
        )
    tiles = math.ceil(m / rows) * math.ceil(n / columns)
    waves = math.ceil(tiles / processors)
    turns = waves * processors
    in_tiles = m * n / (tiles * rows * columns)
    seconds = None if peak is None else turns * rows * columns * 2 * k / peak
    return MatrixProduct(tiles, waves, in_tiles, tiles / turns, seconds)
