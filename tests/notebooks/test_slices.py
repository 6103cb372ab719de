"""A change of what decides a claim is noticed, and no other."""

import functools
import json

import nbformat
import pytest
import slices
from pages import write_notebook
from project import TUTORIALS

#: Chapter and claim; what stands there → what would change what was measured.
DECIDING = {
    "00 Two workers make": [
        "num_workers=choices, seconds=30 → num_workers=choices, seconds=3",
        'ratios["num_workers=2"] → ratios["num_workers=1"]',
        "nn.Linear(512, 10) → nn.Linear(512, 20)",
    ],
    "00 A loop is as fast": ["photos, batch_size=16))) → photos, batch_size=32)))"],
    "00 Workers make a loop": ["[0, 2], seconds=20 → [0, 1], seconds=20"],
    "02 Counting together": [
        "torch.set_num_threads(1) → torch.set_num_threads(2)",
        "batch_size=64, shuffle=True → batch_size=8, shuffle=True",
    ],
    "02 Recording slows it": ["KINETO_LOG_LEVEL=99 → KINETO_LOG_LEVEL=0"],
    "04 Two workers gain": ['"] for n in (2, 4) → "] for n in (4, 2)'],
    "04 Four workers gain at least 2.5": ["else [0, 2, 4] → else [0, 1, 4]"],
    "04 Asking together": ["ThreadPoolExecutor(len(indices)) → ThreadPoolExecutor(1)"],
    "07 Accumulation saves": ['of="peak_memory_bytes", seconds=50 → seconds=50'],
    "07 Packing trains": ["draw_texts(44) → draw_texts(16)"],
    "07 Checkpointing is slower": ["use_reentrant=False → use_reentrant=True"],
    "07 Updating in the backward": ["p.grad = None → p.grad.zero_()"],
    "13 A ring beats": ["kit.start_ranks(2 if short else 4) → kit.start_ranks(2)"],
    "13 no_sync": ["lr=0.1 → lr=0.2", "Ethernet, 1 Gbit/s → Ethernet, 10 Gbit/s"],
    "13 PowerSGD": ['"slow": 100 → "slow": 1'],
}
#: What only words or shows something, or is another claim's.
NEUTRAL = {
    "00 Two workers make": [
        '"""Train a small network on photos.""" → """Train."""',
        "With one core, workers only → On one core, workers only",
    ],
    "00 A loop is as fast": ["[0, 1, 2], seconds=8 → [0, 1], seconds=8"],
    "02 Counting together": ['of a step is training?" → is it?"', "rows=8 → rows=7"],
    "07 Accumulation saves": ["kit.explore(train_less → kit.explore(train"],
    "07 Packing trains": ["draw_texts(32) → draw_texts(64)"],
    "13 A ring beats": ["mine = [m for m in step → mine  =  [m for m in step"],
    "13 no_sync": ["cards = 8 → cards = 4"],
}


@functools.cache
def cut(path, text, start):
    notebook = slices.read_notebook(path, text)
    claims = slices.find_claims(notebook)
    [sentence] = [claim for claim in claims if claim.startswith(start)]
    return slices.cut(notebook, sentence)


def change(path, old, new):
    """Return a notebook's text with one piece of its code changed, wherever it is."""
    content = json.loads(path.read_text("utf-8"))
    found = 0
    for cell in content["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and old in source:
            cell["source"], found = source.replace(old, new), found + 1
    assert found, f"{path.name} has no {old!r} any more: choose another change"
    return json.dumps(content)


def list_changes(table):
    return [(claim, change) for claim, some in table.items() for change in some]


def find_difference(claim, text):
    """Return how a claim's slice differs where a piece of code has another text."""
    number, start = claim.split(" ", 1)
    path = next(TUTORIALS.glob(f"{number}_*.ipynb"))
    after = change(path, *text.split(" → "))
    return slices.compare(cut(path, None, start), cut(path, after, start))


@pytest.mark.parametrize(("claim", "text"), list_changes(DECIDING))
def test_what_decides_a_claim_is_noticed(claim, text):
    assert find_difference(claim, text)


@pytest.mark.parametrize(("claim", "text"), list_changes(NEUTRAL))
def test_what_does_not_decide_it_is_not(claim, text):
    assert find_difference(claim, text) == ""


def test_a_claim_may_be_opened_without_measuring_again():
    plain = slices.fingerprint("kit.claim('So.', both.ratio)")
    assert slices.fingerprint("kit.claim('So.', both.ratio, open=True)") == plain
    assert slices.fingerprint("kit.claim('So.', both.ratio, expect='same')") != plain
    assert slices.fingerprint("open('So.', both.ratio, open=True)") != plain


def test_a_stored_notebook_says_what_its_outputs_were_made_by(tmp_path):
    cell = nbformat.v4.new_code_cell("x = 1  # one")
    book = nbformat.v4.new_notebook(cells=[cell], metadata={"kit": {"sources": []}})
    write_notebook(book, tmp_path / "a.ipynb")
    kept = nbformat.read(tmp_path / "a.ipynb", as_version=4).metadata.kit
    assert kept.made_by == {cell.id: slices.fingerprint("x=1")}
