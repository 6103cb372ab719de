"""Make two ranks hang, and read what they answer: the appendix on ranks that hang."""

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd
from matplotlib.patches import Rectangle

from kit.figures import COLORS, kit_look
from kit.figures.style import describe, new_figure

#: A namespace of its own, whose host is called localhost: ranks find each other's pages
#: by that name. All its processes end with it.
ROOM = ["unshare", "-Urn", "--uts", "--pid", "--fork", "--kill-child", "sh", "-c"]
ROOM += ['ip link set lo up && hostname localhost && exec "$@"', "sh"]
#: The flight recorder keeps so many calls (TORCH_FR_BUFFER_SIZE).
ALWAYS = {
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "OMP_NUM_THREADS": "1",
    "TIMEOUT": "1800",
    "TORCH_FR_BUFFER_SIZE": "100",
    "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0",
}


def has_room():
    """Return whether the debug server can run where nobody else reaches it."""
    if not shutil.which("unshare") or not importlib.util.find_spec("tabulate"):
        return False
    tried = subprocess.run([*ROOM, "true"], capture_output=True, timeout=20)
    return tried.returncode == 0


def hang(*faults, equal=3, **variables):
    """Train with each fault until the ranks hang; return their answers by fault.

    An answer has "stacks" and "calls", one page of each rank, and "log", what each has
    written. All processes end, whatever happens.
    """
    in_room = has_room()
    with tempfile.TemporaryDirectory() as kept:
        jobs = []
        for number, fault in enumerate(faults):
            folder = Path(kept, fault)
            folder.mkdir()
            port = 25999 + number if in_room else 0
            jobs.append((fault, str(folder), port, equal))
        words = [sys.executable, "hung_ranks.py", json.dumps(jobs)]
        watcher = subprocess.Popen(
            [*ROOM, *words] if in_room else words,
            env=os.environ | ALWAYS | variables,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            answers = json.loads(watcher.communicate(timeout=300)[0])
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(watcher.pid, signal.SIGKILL)
        for (_, folder, *_), answer in zip(jobs, answers, strict=True):
            answer["log"] = [Path(folder, f"log-{rank}").read_text() for rank in (0, 1)]
    return dict(zip(faults, answers, strict=True))


def find_lines(answer):
    """Return the topmost line of the training script in each rank's stack."""
    lines = Path("hanging_train.py").read_text().splitlines()
    found = []
    for stack in answer["stacks"]:
        number = re.search(r'hanging_train\.py", line (\d+)', stack)[1]
        found.append(lines[int(number) - 1].strip())
    return found


def read_calls(answer):
    """Return a table of the calls to other ranks, as the flight recorder has them."""
    table = {}
    for rank, page in enumerate(answer["calls"]):
        calls = {}
        for call in json.loads(page)["entries"]:
            sizes = "".join(map(str, call["input_sizes"]))
            state = "done" if call["retired"] else "waits"
            name = call["profiling_name"].removeprefix("gloo:")
            calls[call["collective_seq_id"]] = f"{name} {sizes} {state}"
        table[f"rank {rank}"] = calls
    return pd.DataFrame(table).rename_axis("call").fillna("not called")


def find_difference(answer):
    """Return the first call in which the ranks differ: its number, and both names."""
    names = read_calls(answer).replace(" (done|waits)$", "", regex=True)
    first = names[names["rank 0"] != names["rank 1"]].iloc[0]
    return int(first.name), first["rank 0"], first["rank 1"]


@kit_look()
def draw_calls(answer):
    """Draw the calls of both ranks as boxes; the first that differ are orange."""
    calls = read_calls(answer)
    number, *_ = find_difference(answer)
    title = f"The ranks differ first in call {number}"
    figure = new_figure(title, 1.5)
    axes = figure.subplots()
    for row, rank in enumerate(calls.columns):
        for column, call in enumerate(calls.index):
            text = calls.loc[call, rank]
            fill = COLORS["zone"]
            color = COLORS["ink"]
            if call == number:
                fill = COLORS["predicted"]
                color = COLORS["card"]
            box = Rectangle((column + 0.03, row + 0.1), 0.94, 0.8, color=fill)
            axes.add_patch(box)
            look = {"ha": "center", "va": "center", "size": 9.5, "color": color}
            words = re.sub(" +(done|waits)$", r"\n\1", text)
            axes.text(column + 0.5, row + 0.5, words, **look)
    axes.set(xlim=(0, len(calls)), ylim=(2, 0))
    axes.set_yticks([0.5, 1.5], calls.columns)
    axes.set_xticks(
        [column + 0.5 for column in range(len(calls))],
        [f"call {call}" for call in calls.index],
    )
    axes.grid(visible=False)
    rows = [f"{rank}: {', '.join(calls[rank])}" for rank in calls.columns]
    return describe(figure, title, *rows)
