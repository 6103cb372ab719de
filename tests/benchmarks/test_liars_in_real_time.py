"""Experiments built to deceive, in real time: `make bench`."""

import liars_beside_peers
import pytest
from liars import LIARS

import kit

pytestmark = pytest.mark.usefixtures("tidy")

ASKED = [liar for liar in LIARS if liar.real]


@pytest.fixture(autouse=True, scope="module")
def conditions():
    print(f"\n{kit.this_machine()}\n")


@pytest.mark.parametrize("liar", ASKED, ids=lambda liar: liar.name)
def test_the_truth_or_what_is_wrong(liar):
    row = liars_beside_peers.ask_kit(liar)
    said = (
        f"{row['judged']}: {row['verdict']} {row['figures']}, the truth: "
        f"{liar.truth}, {row['seconds']:.1f} s ({row['reason'] or 'no reason'})"
    )
    print(f"{liar.name}: {said}")
    expected = ("right", "says why", "undecided")
    if liar.not_catchable:
        expected = ("not catchable",)
    assert row["judged"] in expected, f"{liar.deception}\n{said}"


def test_the_table_has_a_line_for_each_and_a_column_for_each_tool():
    rows = [
        {
            "liar": liar.name,
            "deception": liar.deception,
            "truth": liar.truth,
            "tool": tool,
            "verdict": "same",
            "reason": "of a | b",
            "figures": "1 × [1, 1]",
            "judged": "right" if liar.truth == "same" else "wrong",
            "seconds": 1.0,
        }
        for liar in ASKED
        for tool in ("kit", "pyperf")
    ]
    lines = liars_beside_peers.render(rows).splitlines()
    assert len(lines) == 2 + len(ASKED) + 1
    assert {line.replace("\\|", "").count("|") for line in lines} == {6}
    same = sum(liar.truth == "same" for liar in ASKED)
    assert lines[-1].count(f"{same} of {len(ASKED)}") == 2
