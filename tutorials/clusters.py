"""Two machines in one: network namespaces that chapter 17 trains in, and faults.

The chapter shows what to build. This module keeps it alive, starts programs in it, ends
them, and reads what a training has noted. Where namespaces are not to be had, the two
"machines" are two groups of processes that meet on loopback.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import ipywidgets as widgets
import psutil

import kit
from kit.figures import draw_lines, to_html

#: How a program enters a machine: as the keeper's user, then in the machine's network.
ENTER = "nsenter -t {0} -U -m -w --preserve-credentials"
ENTER += " --net=/proc/{0}/root/run/netns/{1}"
#: What torchrun is told on each machine.
OPTIONS = """--nnodes={nodes} --nproc-per-node=1 --max-restarts=3
--rdzv-backend=c10d --rdzv-id=letters --rdzv-endpoint={endpoint}
--rdzv-conf=is_host={is_host},last_call_timeout=3 --local-addr={address}"""


class Cluster:
    """Two machines, 0 and 1; `kind` says what they are made of."""

    def __init__(self, commands):
        """Build what these commands of a shell say; fall back to loopback."""
        self.token = os.urandom(16).hex()
        atexit.register(self.close)
        script = f"set -e\n{commands}\necho ready\nread _"
        shell = ["sh", "-c", 'exec unshare -Urnm sh -c "$0"', script]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        self.keeper = subprocess.Popen(shell, text=True, **pipes)
        if self.keeper.stdout.readline() == "ready\n":
            self.kind = "two network namespaces, joined by a link of their own"
            names, pid = ("one", "two"), self.keeper.pid
            self.doors = [ENTER.format(pid, name).split() for name in names]
            self.addresses, self.interface = ["10.0.0.1", "10.0.0.2"], "eth0"
        else:
            self.kind = "two groups of processes on loopback (no namespaces here)"
            self.doors, self.addresses = [[], []], 2 * ["127.0.0.1"]
            self.interface = "lo" if sys.platform == "linux" else "lo0"

    def find_endpoint(self):
        """Return an address of the first machine with a port that is free."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            return f"{self.addresses[0]}:{server.getsockname()[1]}"

    def torchrun(self, machine, *words, log):
        """Start torchrun on a machine; what is said goes into a file."""
        environment = os.environ | {"CLUSTER": f"{self.token}-{machine}"}
        environment["GLOO_SOCKET_IFNAME"] = self.interface
        environment["TORCH_CPP_LOG_LEVEL"] = "ERROR"
        # Else a machine that comes later never learns where the others meet.
        environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        agent = [*self.doors[machine], sys.executable, "-m", "torch.distributed.run"]
        with open(log, "a") as out:
            streams = {"stdout": out, "stderr": out}
            return subprocess.Popen([*agent, *words], env=environment, **streams)

    def run(self, *words):
        """Run torchrun on the first machine to its end; a quick run does not."""
        if not kit.quick:
            self.torchrun(0, *words, log=os.devnull).wait()
            self.kill(0)

    def preflight(self):
        """Return what preflight.py says of both machines; nothing in a quick run."""
        if kit.quick:
            return ""
        training = Training(self, 0, nodes="2", script="scripts/preflight.py {}")
        training.agents[0].wait(timeout=120)
        return training.read_log(0)

    def count_received(self, machine):
        """Return how many bytes a machine has received, as Linux counts them."""
        words = [*self.doors[machine], "cat", "/proc/net/dev"]
        table = subprocess.check_output(words, text=True)
        return int(table.partition(f"{self.interface}:")[2].split()[0])

    def find(self, machine):
        """Return the processes of a machine: those that have its mark."""
        mark = f"{self.token}-{machine}"
        running = psutil.process_iter(["environ"])
        return [p for p in running if (p.info["environ"] or {}).get("CLUSTER") == mark]

    def find_worker(self, machine):
        """Return the process that trains on a machine, not torchrun's own; or None."""
        found = self.find(machine)
        workers = [p for p in found if "torch.distributed.run" not in p.cmdline()]
        return workers[0] if workers else None

    def kill(self, machine):
        """End all that runs on a machine, as if its power went."""
        ended = self.find(machine)
        for process in ended:
            # One that has ended by itself must not keep the others alive.
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(ended, timeout=5)

    def kill_all(self):
        """End all that runs on either machine."""
        self.kill(0)
        self.kill(1)

    def close(self):
        """End all; without their keeper, the namespaces go as well."""
        self.kill_all()
        if self.keeper.poll() is None:
            self.keeper.communicate("\n")


class Training:
    """A script that trains on both machines of a cluster, in a folder of its own."""

    def __init__(self, cluster, steps, nodes="1:2", script="letters_train.py {} {}"):
        """Start an agent on each machine; the script gets the folder and the steps."""
        self.cluster = cluster
        self.steps = min(4, steps) if kit.quick else steps
        self._kept = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.folder = Path(self._kept.name)
        self.script = script.format(self.folder, self.steps)
        self.meeting = {"nodes": nodes, "endpoint": cluster.find_endpoint()}
        self.agents = [self.begin(0), self.begin(1)]

    def begin(self, machine):
        """Start the agent of a machine."""
        own = {"is_host": 1 - machine, "address": self.cluster.addresses[machine]}
        words = [*OPTIONS.format(**self.meeting, **own).split(), *self.script.split()]
        log = self.folder / f"machine-{machine}.log"
        return self.cluster.torchrun(machine, *words, log=log)

    def read(self):
        """Return what was noted: a dict for each step that was made."""
        path = self.folder / "journal.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def read_log(self, machine):
        """Return what was said on a machine."""
        return (self.folder / f"machine-{machine}.log").read_text()

    def wait_until(self, seen, seconds=120):
        """Wait until what was noted is as wanted."""
        end = time.monotonic() + seconds
        while not seen(self.read()):
            if time.monotonic() > end or all(agent.poll() for agent in self.agents):
                self.cluster.kill_all()
                said = "\n".join(self.read_log(machine)[-2000:] for machine in (0, 1))
                raise TimeoutError(f"the training does not go on\n{said}")
            time.sleep(0.02)

    def wait_for(self, step):
        """Wait until this step was made; return the training."""
        self.wait_until(lambda rows: any(row["step"] >= step for row in rows))
        return self

    def ask(self, machine):
        """Return where the worker of a machine is: the line of its last call."""
        self.cluster.find_worker(machine).send_signal(signal.SIGUSR1)
        time.sleep(0.5)
        stack = self.read_log(machine).partition("call first):")[2]
        name, number = re.search(r'(\w+\.py)", line (\d+)', stack).groups()
        line = Path(name).read_text().splitlines()[int(number) - 1].strip()
        return f"{name}, line {number}: {line}"

    def finish(self):
        """Wait for the last step, end all, and return what was noted."""
        self.wait_for(self.steps - 1)
        self.cluster.kill_all()
        return self.read()


def find_gaps(rows):
    """Return for each restart: seconds without a step, steps lost, ranks after it."""
    return [
        (row["time"] - last["time"], last["step"] + 1 - row["step"], row["ranks"])
        for last, row in itertools.pairwise(rows)
        if row["pid"] != last["pid"]
    ]


def tell(what, rows):
    """Print the restarts, and draw the losses."""
    for seconds, lost, ranks in find_gaps(rows):
        print(
            f"{seconds:.1f} s without a step, {lost} steps made again, ranks: {ranks}"
        )
    return draw_losses(what, rows)


def draw_losses(what, rows):
    """Draw the loss over time, one line for each life of rank 0."""
    series = {}
    for row in rows:
        name = f"ranks: {row['ranks']}, process {row['pid']}"
        line = series.setdefault(name, ([], [], None, None, "measured"))
        line[0].append(row["time"] - rows[0]["time"])
        line[1].append(row["loss"])
    gaps = find_gaps(rows)
    seconds, lost = sum(gap[0] for gap in gaps), sum(gap[1] for gap in gaps)
    title = f"{what}: {lost} steps made again, {seconds:.0f} s without a step"
    return draw_lines(series, title=title, xlabel="seconds", ylabel="loss")


class Buttons(widgets.VBox):
    """Buttons that train on both machines and do harm; the loss is drawn meanwhile."""

    def __init__(self, cluster, steps=300):
        """Make them; nothing runs before one is pressed."""
        self.cluster = cluster
        self.steps = steps
        self.training = None
        self.picture = widgets.HTML()
        actions = {
            "Train": self.train,
            "Lose machine two": lambda: cluster.kill(1),
            "Kill a process": lambda: cluster.find_worker(1).kill(),
            "Bring it back": lambda: self.training.begin(1),
        }
        self.buttons = []
        for word, act in actions.items():
            button = widgets.Button(description=word, disabled=word != "Train")
            button.on_click(lambda _, act=act: act())
            self.buttons.append(button)
        super().__init__([widgets.HBox(self.buttons), self.picture])

    def train(self):
        """Begin anew on both machines, and draw until the last step."""
        self.cluster.kill_all()
        self.training = Training(self.cluster, self.steps)
        for button in self.buttons:
            button.disabled = False
        threading.Thread(target=self.watch, args=[self.training], daemon=True).start()

    def watch(self, training):
        """Draw what was noted, until a training ends or another one begins."""
        while training is self.training and training.agents[0].poll() is None:
            time.sleep(1)
            rows = training.read()
            if rows:
                figure = draw_losses("So far", rows)
                self.picture.value = to_html(figure, figure.alt)
