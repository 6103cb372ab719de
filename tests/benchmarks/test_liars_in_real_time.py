"""Experiments built to deceive, in real time."""

import liars_beside_peers
import pytest
from liars import LIARS

import kit

pytestmark = pytest.mark.usefixtures("tidy")


@pytest.mark.parametrize(
    "liar", [liar for liar in LIARS if liar.real], ids=lambda liar: liar.name
)
def test_the_truth_or_what_is_wrong(liar):
    row = liars_beside_peers.ask_kit(liar)
    print(f"\n{kit.this_machine().name}: {liar.name}, the truth: {liar.truth}: {row}")
    expected = ("right", "says why", "undecided")
    if liar.not_catchable:
        expected = ("not catchable",)
    assert row["judged"] in expected, liar.deception
