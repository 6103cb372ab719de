"""Two machines in one: network namespaces that chapter 17 trains in, and faults.

The chapter shows what to build. This module keeps it alive, starts programs in it, ends
them, and reads what a training has logged. Where namespaces are not to be had, the two
"machines" are two groups of processes that meet on loopback, and `links.py` delays
what they send.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pandas as pd
import psutil
from drawings_17 import draw_run

import kit
from kit.figures import to_html
from kit.mode import is_static

#: Where all programs run, so that they find the scripts.
HERE = Path(__file__).parent
#: How a program enters a machine: as the keeper's user, then in the machine's network.
ENTER = "nsenter -t {0} -U -m -w --preserve-credentials"
ENTER += " --net=/proc/{0}/root/run/netns/{1}"
#: What torchrun is given on each machine.
OPTIONS = """--nnodes={nodes} --nproc-per-node=1 --max-restarts=3
--rdzv-backend=c10d --rdzv-id=letters --rdzv-endpoint={endpoint}
--rdzv-conf=is_host={is_host},last_call_timeout=3 --local-addr={address}"""
#: What the chapter trains, with a folder and a number of steps.
SCRIPT = """take_home/17_train_resumable.py --folder={folder} --steps={steps}
--save-every=20 --log-every=1 --timeout=5"""
STEP = re.compile(r"^([\d.]+) step (\d+) loss ([\d.]+) ranks (\d+)$", re.M)


class Cluster:
    """Two machines, 0 and 1; `kind` says what they are made of."""

    def __init__(self, commands):
        """Build what these commands of a shell say; fall back to loopback."""
        self.token = os.urandom(16).hex()
        atexit.register(self.close)
        script = f"set -e\n{commands}\necho ready\nread _"
        shell = ["sh", "-c", 'exec unshare -Urnm sh -c "$0"', script]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        self.keeper = subprocess.Popen(shell, text=True, cwd=HERE, **pipes)
        if self.keeper.stdout.readline() == "ready\n":
            self.kind = "two network namespaces, joined by a link of their own"
            names, pid = ("one", "two"), self.keeper.pid
            self.doors = [ENTER.format(pid, name).split() for name in names]
            self.addresses, self.interface = ["10.0.0.1", "10.0.0.2"], "eth0"
            self.has_link = True
        else:
            self.kind = "two groups of processes on loopback (no namespaces here)"
            self.doors, self.addresses = [[], []], 2 * ["127.0.0.1"]
            self.interface = "lo" if sys.platform == "linux" else "lo0"
            self.has_link = False

    def find_endpoint(self):
        """Return an address of the first machine with a port that is free."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            return f"{self.addresses[0]}:{server.getsockname()[1]}"

    def start(self, machine, *words, variables=(), **streams):
        """Start Python on a machine, on the CPU even where there is a GPU."""
        environment = os.environ | {"CLUSTER": f"{self.token}-{machine}"}
        environment["CUDA_VISIBLE_DEVICES"] = ""
        environment["OMP_NUM_THREADS"] = "1"
        environment["GLOO_SOCKET_IFNAME"] = self.interface
        environment["TORCH_CPP_LOG_LEVEL"] = "ERROR"
        environment |= dict(variables)
        program = [*self.doors[machine], sys.executable, *words]
        return subprocess.Popen(program, env=environment, cwd=HERE, **streams)

    def torchrun(self, machine, *words, log):
        """Start torchrun on a machine; what it prints goes into a file."""
        # Else a machine that comes later never learns where the others meet.
        variables = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        agent = ["-m", "torch.distributed.run", *words]
        with open(log, "a") as out:
            streams = {"stdout": out, "stderr": out}
            return self.start(machine, *agent, variables=variables, **streams)

    def run(self, *words):
        """Run torchrun on the first machine to its end; a quick run does not."""
        if not kit.quick:
            self.torchrun(0, *words, log=os.devnull).wait()
            self.kill(0)

    def preflight(self):
        """Return what 17_preflight.py prints on both machines; nothing if quick."""
        if kit.quick:
            return ""
        script = "take_home/17_preflight.py --folder={folder}"
        training = Training(self, 0, nodes="2", script=script)
        training.agents[0].wait(timeout=120)
        return training.read_log(0)

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


class Pair:
    """A process on each machine, which compute and send when they are asked to.

    A processor that computes for both machines would tell little about two of them. So
    these processes sleep where a device would compute, and what they send is real.
    """

    def __init__(self, cluster):
        """Start both. They find each other by four variables, without torchrun."""
        address, _, port = cluster.find_endpoint().partition(":")
        meet = {"MASTER_ADDR": address, "MASTER_PORT": port, "WORLD_SIZE": "2"}
        if not cluster.has_link:
            meet["SIMULATED_LINK"] = "1"
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.ranks = [
            cluster.start(
                rank, "sleeping_rank.py", variables=meet | {"RANK": str(rank)}, **pipes
            )
            for rank in (0, 1)
        ]
        self._wait()

    def step(self, seconds, mbit):
        """Sleep so long on both, then add up gradients over so many Mbit/s."""
        for rank in self.ranks:
            rank.stdin.write(f"{seconds} {mbit}\n")
            rank.stdin.flush()
        self._wait()

    def _wait(self):
        for rank in self.ranks:
            if not rank.stdout.readline():
                raise RuntimeError("a rank has ended")

    def close(self):
        """End both, and leave the link with the rate of the chapter's commands."""
        self.step(0.0, 500)
        for rank in self.ranks:
            rank.communicate()


class Training:
    """A script that trains on both machines of a cluster, and what befalls it.

    `faults` has a dict for each fault, with times as `time.time()` returns them.
    """

    def __init__(self, cluster, steps, nodes="1:2", script=SCRIPT):
        """Start an agent on each machine; a quick run only on the first one."""
        self.cluster = cluster
        self.steps = min(4, steps) if kit.quick else steps
        self.faults = []
        self._kept = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.folder = Path(self._kept.name)
        self.script = script.format(folder=self.folder, steps=self.steps)
        machines = [0] if kit.quick else [0, 1]
        if kit.quick:
            nodes = "1"
        self.meeting = {"nodes": nodes, "endpoint": cluster.find_endpoint()}
        self.agents = [self.begin(machine) for machine in machines]

    def begin(self, machine):
        """Start the agent of a machine."""
        own = {"is_host": 1 - machine, "address": self.cluster.addresses[machine]}
        words = [*OPTIONS.format(**self.meeting, **own).split(), *self.script.split()]
        log = self.folder / f"machine-{machine}.log"
        return self.cluster.torchrun(machine, *words, log=log)

    def read_log(self, machine):
        """Return what was printed on a machine."""
        path = self.folder / f"machine-{machine}.log"
        return path.read_text() if path.exists() else ""

    def read(self):
        """Return what was logged: a dict for each step that was made, by time."""
        found = STEP.findall(self.read_log(0) + self.read_log(1))
        rows = [
            {"time": float(t), "step": int(step), "loss": loss, "ranks": int(ranks)}
            for t, step, loss, ranks in found
        ]
        return sorted(rows, key=lambda row: row["time"])

    def wait_until(self, seen, seconds=120):
        """Wait until what was logged is as wanted; return it."""
        end = time.monotonic() + seconds
        while not seen(rows := self.read()):
            ended = all(agent.poll() is not None for agent in self.agents)
            if time.monotonic() > end or ended:
                self.cluster.kill_all()
                logs = "\n".join(self.read_log(machine)[-2000:] for machine in (0, 1))
                raise TimeoutError(f"the training does not go on\n{logs}")
            time.sleep(0.02)
        return rows

    def wait_for(self, step):
        """Wait until this step was made."""
        step = min(step, self.steps - 1)
        self.wait_until(lambda rows: any(row["step"] >= step for row in rows))

    def finish(self):
        """Wait for the last step, end all, and return what was logged."""
        self.wait_for(self.steps - 1)
        self.cluster.kill_all()
        return self.read()

    # Faults

    def kill_process(self, machine):
        """End the worker of a machine at once."""
        self._suffer(
            "a process is killed", lambda: self.cluster.find_worker(machine).kill()
        )

    def stop_process(self, machine):
        """Let the worker of a machine stand still until another one gives up."""
        if kit.quick:
            return
        worker = self.cluster.find_worker(machine)
        # A process that is stopped does not even end when torchrun asks it to.
        self._suffer("a process hangs", worker.suspend, worker.resume)

    def lose_machine(self, machine):
        """End all that runs on a machine, as if its power went."""
        self._suffer("a machine is lost", lambda: self.cluster.kill(machine))

    def return_machine(self, machine):
        """Start the agent of a machine that was lost."""
        self._suffer("it comes back", lambda: self.begin(machine))

    def _suffer(self, what, harm, heal=lambda: None):
        """Do harm, and wait until the training goes on; a quick run does neither."""
        if kit.quick:
            return
        survivor = self.cluster.find_worker(0)
        fault = {"what": what, "harmed": time.time()}
        harm()
        psutil.wait_procs([survivor], timeout=60)
        fault["noticed"] = time.time()
        heal()
        rows = self.wait_until(lambda rows: rows[-1]["time"] > fault["noticed"])
        fault["started"] = self.cluster.find_worker(0).create_time()
        logs = self.read_log(0) + self.read_log(1)
        imports = re.findall(r"^([\d.]+) imports done$", logs, re.M)
        fault["imported"] = max(map(float, imports))
        first = next(row for row in rows if row["time"] > fault["noticed"])
        last = [row for row in rows if row["time"] < fault["noticed"]][-1]
        fault["again"] = first["time"]
        fault["steps repeated"] = last["step"] + 1 - first["step"]
        fault["ranks"] = first["ranks"]
        self.faults.append(fault)

    # What came of it

    def draw(self):
        """Draw the step over time, with the faults."""
        return draw_run(self.read(), self.faults)

    def table(self):
        """Return a table: the seconds of each fault, and the steps repeated."""
        parts = {"noticing": ("harmed", "noticed"), "agents": ("noticed", "started")}
        parts |= {"imports": ("started", "imported"), "the rest": ("imported", "again")}
        table = pd.DataFrame(self.faults, columns=_COLUMNS).set_index("what")
        for name, (begin, end) in parts.items():
            table[name] = (table[end] - table[begin]).round(1)
        table["total seconds"] = (table["again"] - table["harmed"]).round(1)
        return table[["total seconds", *parts, "steps repeated", "ranks"]]


_COLUMNS = ["what", "harmed", "noticed", "started", "imported", "again"]
_COLUMNS += ["steps repeated", "ranks"]


class Buttons:
    """Buttons that train on both machines and do harm; the steps are drawn meanwhile.

    In a stored notebook, where buttons do nothing, it is a picture of another training.
    """

    def __init__(self, cluster, earlier, steps=3000):
        """Nothing runs before a button is pressed."""
        self.cluster = cluster
        self.earlier = earlier
        self.steps = steps
        self.training = None
        self.picture = None

    def _ipython_display_(self):
        from IPython.display import display

        display(self.earlier.draw() if is_static() else self._build())

    def _build(self):
        import ipywidgets as widgets

        self.picture = widgets.HTML()
        actions = {
            "Train": self.train,
            "Kill a process": lambda: self.training.kill_process(1),
            "Let it hang": lambda: self.training.stop_process(1),
            "Lose machine two": lambda: self.training.lose_machine(1),
            "Bring it back": lambda: self.training.return_machine(1),
        }
        buttons = []
        for word, act in actions.items():
            button = widgets.Button(description=word, disabled=word != "Train")
            button.on_click(lambda _, act=act: self._press(act))
            buttons.append(button)
        self.buttons = buttons
        return widgets.VBox([widgets.HBox(buttons), self.picture])

    def _press(self, act):
        """Do it on a thread, since harm waits until the training goes on."""
        threading.Thread(target=self._act, args=[act], daemon=True).start()

    def _act(self, act):
        with contextlib.suppress(TimeoutError, AttributeError, IndexError):
            act()

    def train(self):
        """Begin anew on both machines, and draw until the last step."""
        self.cluster.kill_all()
        training = self.training = Training(self.cluster, self.steps)
        for button in self.buttons:
            button.disabled = False
        while training is self.training and training.agents[0].poll() is None:
            time.sleep(1)
            if training.read():
                figure = training.draw()
                self.picture.value = to_html(figure, figure.alt)
