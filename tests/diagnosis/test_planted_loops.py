"""Small training loops with a planted fault are diagnosed in earnest, once a night.

`make test` has the same causes on a fake clock: `test_diagnosing.py`.
"""

import planted
import pytest
import slow_loops
import torch

import kit
from kit.diagnosis.causes import CAUSES
from kit.diagnosis.repairs import REPAIRS

pytestmark = [pytest.mark.usefixtures("tidy"), pytest.mark.nightly]

#: The verdict on each loop, and the repair that surely gains, if one was tried.
PLANTED = {
    "A": ("overhead", ""),
    "B": ("python", ""),
    "C": ("compute", "bfloat16"),
    "D": ("input", ""),
    "E": ("optimizer", "fused"),
    "F": ("threads", "threads"),
    "G": ("settings", "anomaly"),
    "H": ("settings", ""),
    "I": ("threads", "threads"),
    "workers_restarted": ("input", ""),
    "memory_filled": ("settings", "deterministic"),
    "library_switched_off": ("settings", "onednn"),
    "attention_in_parts": ("settings", "attention"),
    "image_smoothed": ("memory", ""),
    "sort_scores": ("healthy", ""),
}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_loop_gets_the_right_verdict(name):
    cause, repair = PLANTED[name]
    torch.set_num_threads(kit.this_machine().cores)  # as chapter 03 does
    found = kit.diagnose(slow_loops.LOOPS.get(name) or getattr(planted, name))
    assert found.verdict == cause, found
    if repair == "bfloat16" and repair in found.untried:
        return  # this processor has no instructions for it
    assert not repair or found.tried[repair].is_sure, found


def test_each_cause_and_each_repair_has_a_loop():
    verdicts, repairs = zip(*PLANTED.values(), strict=True)
    # The others need a device, or are asked for: `test_diagnosing.py`.
    assert {*CAUSES} - {*verdicts} == {"transfer", "sync"}
    assert {*REPAIRS} - {*repairs} == {"tf32", "compile"}
