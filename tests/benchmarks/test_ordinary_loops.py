"""Ordinary loops in other people's shapes, at full length: no absurd answer.

And a switch with nothing behind it reads zero: what a trial says of a cause comes from
the cause. `python tests/benchmarks/test_ordinary_loops.py` prints both tables.
"""

import statistics
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # for a run as a script
from ordinary import LOOPS

import kit
from kit.diagnosis.once import OnceVariant
from kit.diagnosis.steps import StepWatch
from kit.diagnosis.switches import BatchesInMemory, Switch
from kit.diagnosis.trials import Trials, plan
from kit.diagnosis.wrapping import Work, change, labels
from kit.measuring.experiment import resolve
from kit.progress import Progress

pytestmark = [pytest.mark.usefixtures("tidy"), pytest.mark.timeout(600)]

#: What leaving a phase out saves beyond its share is what it takes from the rest.
ABSURD = 0.15
TRIALS, MOST = 5, 0.02


def read_nothing(loop):
    """Return what a switch with nothing behind it seems to save, five times over."""
    work = Work()
    loaders = BatchesInMemory(work)
    nothing = Switch(work)
    experiment = change(resolve(loop), labels, loaders.install, work=work)
    watch, progress = StepWatch(work), Progress("nothing")
    with OnceVariant(experiment, {}).drive(0) as driver:
        driver.open()
        driver.warm_up()
        found = []
        for _ in range(TRIALS):
            planned = plan(
                {"input": nothing}, driver.step_seconds, 99.0, loaders.loaders
            )
            seconds = planned.seconds
            trials = Trials(driver, progress, watch, loaders.loaders, seconds)
            found.append(trials.make(planned.trials[0]).value)
    return found


@pytest.mark.parametrize("name", LOOPS)
def test_an_ordinary_loop_gets_no_absurd_answer(name):
    torch.set_num_threads(kit.this_machine().cores)
    found = kit.diagnose(LOOPS[name])
    print(found)
    for cause, saving in found.savings.items():
        share = found.shares.get(cause, 0.0)
        if saving.measured and not found.profile.children:
            assert saving.low < share + ABSURD, f"{cause} saves more than it takes"


@pytest.mark.parametrize("name", LOOPS)
def test_a_switch_with_nothing_behind_it_reads_zero(name):
    torch.set_num_threads(kit.this_machine().cores)
    found = read_nothing(LOOPS[name])
    print(name, found)
    assert abs(statistics.median(found)) <= MOST


if __name__ == "__main__":
    torch.set_num_threads(kit.this_machine().cores)
    for name in sys.argv[2:] or LOOPS:
        if "nothing" in sys.argv[1:2]:
            values = read_nothing(LOOPS[name])
            middle = statistics.median(values)
            print(f"{name}: {middle:+.3f} {[round(v, 3) for v in values]}", flush=True)
            continue
        found = kit.diagnose(LOOPS[name])
        saved = {**found.savings, **found.tried}
        told = ", ".join(f"{cause} {each}" for cause, each in saved.items())
        shares = ", ".join(f"{p} {s:.0%}" for p, s in found.shares.items())
        print(f"{name}: {found.verdict}; {found.reason} [{shares}; {told}]", flush=True)
