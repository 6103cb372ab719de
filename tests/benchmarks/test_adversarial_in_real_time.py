"""Experiments built to deceive, in real time."""

import adversarial_beside_peers
import pytest
from adversarial import ADVERSARIAL

import kit

pytestmark = pytest.mark.usefixtures("tidy")


@pytest.mark.parametrize(
    "case", [case for case in ADVERSARIAL if case.real], ids=lambda case: case.name
)
def test_pairs_built_to_deceive_get_the_true_verdict_or_a_reason(case):
    row = adversarial_beside_peers.ask_kit(case)
    print(f"\n{kit.this_machine().name}: {case.name}, the truth: {case.truth}: {row}")
    expected = ("right", "says why", "undecided")
    if case.not_catchable:
        expected = ("not catchable",)
    assert row["judged"] in expected, case.deception
