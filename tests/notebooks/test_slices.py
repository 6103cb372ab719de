"""A change of what decides a claim is noticed, and no other."""

import functools
import json

import pytest
import slices
from project import TUTORIALS

#: Chapter and claim; what stands there → what would change what was measured.
DECIDING = [
    "00 Two workers make: choices, seconds=30 → choices, seconds=3",
    '00 Two workers make: ratios["num_workers=2"] → ratios["num_workers=1"]',
    "00 Two workers make: nn.Linear(512, 10) → nn.Linear(512, 20)",
    "00 Workers make a loop: [0, 2], seconds=20 → [0, 1], seconds=20",
    "02 Counting together: torch.set_num_threads(1) → torch.set_num_threads(2)",
    "02 Counting together: batch_size=64, shuffle=True → batch_size=8, shuffle=True",
    "02 Recording slows it: KINETO_LOG_LEVEL=99 → KINETO_LOG_LEVEL=0",
    '04 Two workers gain: "] for n in (2, 4) → "] for n in (4, 2)',
    "07 Checkpointing is slower: use_reentrant=False → use_reentrant=True",
    "04 Four workers gain at least 2.5: short else [0, 2, 4] → short else [0, 1, 4]",
    '07 Accumulation saves: of="peak_memory_bytes", seconds=50 → seconds=50',
    "07 Packing trains: draw_texts(44) → draw_texts(16)",
    "07 Updating in the backward: p.grad = None → p.grad.zero_()",
    "13 A ring beats: kit.start_ranks(2 if short else 4) → kit.start_ranks(2)",
    "13 no_sync: Ethernet, 1 Gbit/s → Ethernet, 10 Gbit/s",
    '13 PowerSGD: "slow": 100 → "slow": 1',
]
#: What only words or shows something, or is another claim's.
NEUTRAL = [
    '00 Two workers make: """Train a small network on photos.""" → """Train."""',
    "00 Two workers make: With one core, workers only → On one core, workers only",
    "00 A loop is as fast: [0, 1, 2], seconds=8 → [0, 1], seconds=8",
    '02 Counting together: share of a step is training?" → share is training?"',
    "02 Counting together: rows=8 → rows=7",
    "07 Accumulation saves: kit.explore(train_less → kit.explore(train",
    "07 Packing trains: draw_texts(32) → draw_texts(64)",
    "13 A ring beats: mine = [m for m in step → mine  =  [m for m in step",
    "13 no_sync: cards = 8 → cards = 4",
]


@functools.cache
def cut(path, text, start):
    notebook = slices.read_notebook(path, text)
    claims = slices.find_claims(notebook)
    [sentence] = [claim for claim in claims if claim.startswith(start)]
    return slices.cut(notebook, sentence)


def change(path, old, new):
    """Return a notebook's text with one piece of its code changed, wherever it is."""
    content = json.loads(path.read_text("utf-8"))
    code = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    found = [cell for cell in code if old in "".join(cell["source"])]
    for cell in found:
        cell["source"] = "".join(cell["source"]).replace(old, new)
    assert found, f"{path.name} has no {old!r} any more: choose another change"
    return json.dumps(content)


def find_difference(row):
    """Return how a claim's slice differs where a piece of code has another text."""
    claim, text = row.split(": ", 1)
    number, start = claim.split(" ", 1)
    path = next(TUTORIALS.glob(f"{number}_*.ipynb"))
    after = change(path, *text.split(" → "))
    return slices.compare(cut(path, None, start), cut(path, after, start))


@pytest.mark.parametrize("row", DECIDING)
def test_what_decides_a_claim_is_noticed(row):
    assert find_difference(row)


@pytest.mark.parametrize("row", NEUTRAL)
def test_what_does_not_decide_it_is_not(row):
    assert find_difference(row) == ""


#: What comes before a claim of `found`, and what is of its slice.
SMALL = [("import links § found = f(links)", "class LinkGroup")]
SMALL += [("%%writefile a.py\nX = 1 § import a § found = f(a)", "X = 1")]
SMALL += [("import kit § found = f(kit.data.glyphs)", "def draw_chunk")]
SMALL += [("x = [] § x[0] = 1 § found = f(x)", "x[0] = 1")]
SMALL += [("x = 1 § x += 1 § found = f(x)", "x = 1")]
SMALL += [("def f(): return x\nx = 1 § found = f()", "x = 1")]


@pytest.mark.parametrize(("code", "part"), SMALL)
def test_what_a_ratio_was_made_of_is_in_its_slice(code, part):
    sources = [*code.split(" § "), "claim('So.', found)"]
    cells = [{"cell_type": "code", "source": source} for source in sources]
    text = json.dumps({"cells": cells})
    assert part in "\n".join(cut(TUTORIALS / "x.ipynb", text, "So."))


def test_a_claim_may_be_opened_without_measuring_again():
    plain = slices.fingerprint("kit.claim('So.', both.ratio)")
    assert slices.fingerprint("kit.claim('So.', both.ratio, open=True)") == plain
    assert slices.fingerprint("kit.claim('So.', both.ratio, expect='same')") != plain
    assert slices.fingerprint("open('So.', both.ratio, open=True)") != plain
