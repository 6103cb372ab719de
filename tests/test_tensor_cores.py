"""Tiles and waves: the formula against tiles that are dealt out one by one."""

import itertools
import math
import random

import pytest

from kit.costs import predict_matmul


def deal(m, n, tile, processors):
    """Return tiles, waves and the useful share, from tiles cut and dealt one by one."""
    areas = [
        min(tile[0], m - top) * min(tile[1], n - left)
        for top in range(0, m, tile[0])
        for left in range(0, n, tile[1])
    ]
    turns = list(itertools.zip_longest(*[iter(areas)] * processors, fillvalue=0))
    done = sum(map(sum, turns))
    assert done == m * n
    return len(areas), len(turns), done / (len(turns) * processors * math.prod(tile))


@pytest.mark.parametrize("seed", range(20))
def test_formula_agrees_with_tiles_dealt_one_by_one(seed):
    draw = random.Random(seed)
    m, n, processors = draw.randint(1, 900), draw.randint(1, 900), draw.randint(1, 20)
    tile = draw.choice([(128, 256), (64, 64), (128, 128), (7, 3)])
    found = predict_matmul(m, n, 64, tile=tile, processors=processors)
    tiles, waves, useful = deal(m, n, tile, processors)
    assert (found.tiles, found.waves) == (tiles, waves)
    assert found.utilisation == pytest.approx(useful)
    assert 0 < found.in_tiles <= 1
    assert 0 < found.in_waves <= 1


def test_example_of_the_source():
    """108 processors and tiles of 256 × 128: one tile more costs a whole wave."""
    a100 = {"tile": (256, 128), "processors": 108, "peak": 312e12}
    full = predict_matmul(256 * 12, 128 * 9, 4096, **a100)
    more = predict_matmul(256 * 12, 128 * 9 + 1, 4096, **a100)
    assert (full.tiles, full.waves, full.utilisation) == (108, 1, 1.0)
    assert (more.tiles, more.waves) == (120, 2)
    assert more.seconds == pytest.approx(2 * full.seconds)
    assert full.seconds == pytest.approx(2 * 3072 * 1152 * 4096 / 312e12)


def test_a_full_device_reaches_its_peak():
    found = predict_matmul(1280, 2560, 512, processors=100, peak=1e12)
    assert found.utilisation == 1.0
    assert found.seconds == pytest.approx(2 * 1280 * 2560 * 512 / 1e12)


def test_k_changes_the_seconds_only():
    short, long = (predict_matmul(300, 300, k, peak=1e12) for k in (64, 128))
    assert short[:4] == long[:4]
    assert long.seconds == pytest.approx(2 * short.seconds)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"m": 0}, "m = 0"),
        ({"n": 1.5}, "n = 1.5"),
        ({"k": -1}, "k = -1"),
        ({"tile": (0, 256)}, "tile's rows = 0"),
        ({"processors": 0}, "processors = 0"),
        ({"peak": 0.0}, "peak=0.0"),
        ({"peak": math.nan}, "peak=nan"),
        ({"m": math.nan}, "m = nan"),
        ({"m": math.inf}, "m = inf"),
    ],
)
def test_bad_input_names_what_is_wrong(change, told):
    sizes = {"m": 8, "n": 8, "k": 8} | change
    with pytest.raises(ValueError, match=r"predict_matmul\(\)") as caught:
        predict_matmul(**sizes)
    assert told in str(caught.value)
