"""Starts fresh processes, one measuring at a time, and gathers what they say."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import kit

from .fresh import BASELINE, BESIDE, CHALLENGER, KIT
from .judging import judge, make_cells

#: How long the kit is asked to measure, and how long a plain loop runs in all.
SECONDS = 8.0
#: So many processes, or pairs of processes, tell what the ratio is without the kit.
TRUTHS = 5
#: Seconds that a process may take to be ready, and over what it was asked to measure:
#: several of them may compile at the same time.
PATIENCE = 300.0
#: How many times as long as asked the kit may take, where starts are dear.
MOST_OVER = 6.0

_FOLDER = Path(__file__).resolve().parent


class Failed(Exception):
    """A process did not answer."""


class FreshProcess:
    """A process that loads at once, and measures when its turn comes.

    `errors` is a file for what it complains about: a pipe that nobody reads gets full.
    """

    def __init__(self, pair, task, seconds, errors):
        self.heading = f"{pair.name}, {task}"
        self.limit = PATIENCE + MOST_OVER * seconds
        # With -P it imports nothing from where the benchmark happens to be started.
        module = f"{_FOLDER.name}.fresh"
        command = [sys.executable, "-P", "-m", module, pair.name, task, str(seconds)]
        self.errors = errors
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=make_environment(),
            start_new_session=True,  # so that it can be ended with its children
        )

    def wait_until_ready(self):
        output = self.process.stdout
        says_something, _, _ = select.select([output], [], [], PATIENCE)
        if not says_something or output.readline() != "ready\n":
            raise Failed(self.explain("was never ready"))

    def ask(self):
        """Give it its turn; return its answer."""
        try:
            said, _ = self.process.communicate("go\n", timeout=self.limit)
        except subprocess.TimeoutExpired:
            raise Failed(self.explain(f"hung for {self.limit:.0f} s")) from None
        if self.process.returncode:
            raise Failed(self.explain(f"ended with {self.process.returncode}"))
        return json.loads(said.splitlines()[-1])

    def explain(self, fault):
        """Return the fault with the last line of what the process complained about."""
        self.errors.seek(0)
        lines = self.errors.read().strip().splitlines() or ["it said nothing"]
        return f"{self.heading}: {fault}: {lines[-1]}"

    def end(self):
        """End it and its children, whatever they do."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def make_environment():
    """Return the environment of a fresh process, which finds the pairs and the kit."""
    folders = [str(_FOLDER.parent), str(Path(kit.__file__).resolve().parents[1])]
    if os.environ.get("PYTHONPATH"):
        folders.append(os.environ["PYTHONPATH"])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    environment.pop("KIT_QUICK", None)
    return environment


def plan(pair, seconds):
    """Return for each truth its processes: what they do, and for how long."""
    if not pair.alone:
        return [[(BESIDE, seconds)] for _ in range(TRUTHS)]
    there = [(BASELINE, seconds / 2), (CHALLENGER, seconds / 2)]
    back = there[::-1]
    return [back if number % 2 else there for number in range(TRUTHS)]


def run_pair(pair, seconds, keep):
    """Measure a pair by plain loops and by the kit; return its judged row.

    `keep` is called with each answer as it comes. To load PyTorch takes seconds: all
    processes do so at the same time, before the first of them measures.
    """
    with contextlib.ExitStack() as stack:

        def start(task, task_seconds):
            errors = stack.enter_context(tempfile.TemporaryFile("w+"))
            process = FreshProcess(pair, task, task_seconds, errors)
            stack.callback(process.end)
            started.append(process)
            return process

        started = []
        truths = []
        for orders in plan(pair, seconds):
            truths.append([start(*order) for order in orders])
        kit_process = start(KIT, seconds)
        for process in started:
            process.wait_until_ready()
        ratios = []
        for processes in truths:
            rates = {}
            for process in processes:
                rates |= process.ask()
            ratio = rates[CHALLENGER] / rates[BASELINE]
            ratios.append(ratio)
            keep({"pair": pair.name, "kind": "plain", "ratio": ratio, **rates})
        answer = kit_process.ask()
        keep({"pair": pair.name, "kind": "kit", **answer})
    return judge(pair.name, ratios, answer)


def run(pairs, seconds=SECONDS, out=None):
    """Measure pairs; return a row for each.

    `out` is a file that each answer is appended to as a line of JSON, as it comes.
    """

    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)

    def keep(entry):
        if out is not None:
            with open(out, "a") as file:
                file.write(json.dumps(entry) + "\n")

    keep({"kind": "session", "machine": str(kit.this_machine()), "asked": seconds})
    rows = []
    for pair in pairs:
        names = f"{pair.challenger_name} against {pair.baseline_name}"
        print(f"{pair.name}: {names}", flush=True)
        try:
            row = run_pair(pair, seconds, keep)
            print(f"    {'; '.join(make_cells(row)[1:4])}", flush=True)
        except Failed as failure:
            row = {"pair": pair.name, "error": str(failure)}
            print(f"    failed: {failure}", flush=True)
        keep({"kind": "row", **row})
        rows.append(row)
    return rows
