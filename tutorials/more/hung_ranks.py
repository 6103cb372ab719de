"""Two ranks that train until they hang, and a watcher that asks them where they are.

The appendix on ranks that hang starts it: python hung_ranks.py JOBS. A job is a fault,
a folder, a port or 0, and after how many equal answers nobody moves any more.
"""

import contextlib
import http.client
import json
import os
import re
import socket
import sys
import time
import urllib.request
from datetime import timedelta
from multiprocessing import Process

import torch.distributed as dist
from hanging_train import train
from torch.distributed.debug import start_debug_server
from torch.distributed.elastic.control_plane import worker_main


def begin(rank, fault, folder, port):
    """Train as one rank, which answers on a socket, and on a page if it has a port."""
    log = os.open(f"{folder}/log-{rank}", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 2)
    os.environ.update(RANK=str(rank), MASTER_PORT=str(port + 100))
    os.environ["TORCH_WORKER_SERVER_SOCKET"] = f"{folder}/{rank}"
    timeout = timedelta(seconds=int(os.environ["TIMEOUT"]))
    where = None if port else f"file://{folder}/store"
    dist.init_process_group("gloo", where, rank=rank, world_size=2, timeout=timeout)
    with worker_main():
        if port:
            start_debug_server(port=port, start_method="fork")
        train(rank, fault)


def ask_socket(path, page):
    """Return a page of one rank, by its socket."""
    connection = http.client.HTTPConnection("localhost")
    with socket.socket(socket.AF_UNIX) as connection.sock:
        connection.sock.settimeout(20)
        connection.sock.connect(path)
        connection.request("POST", f"/handler/{page}")
        return connection.getresponse().read().decode()


def ask(page, folder, port):
    """Return a page of both ranks."""
    if not port:
        page = page.replace("stacks", "dump_traceback")
        return [ask_socket(f"{folder}/{rank}", page) for rank in (0, 1)]
    with urllib.request.urlopen(f"http://localhost:{port}/{page}", timeout=20) as page:
        return re.findall("<pre>(.*?)</pre>", page.read().decode(), re.S)


def watch(fault, folder, port, equal):
    """Ask both ranks once a second; when they hang, ask for their stacks, and end."""
    ranks = []
    for number in (0, 1):
        rank = Process(target=begin, args=(number, fault, folder, port))
        rank.start()
        ranks.append(rank)
    answers = []
    stacks = []
    end = time.monotonic() + 60
    while not stacks and time.monotonic() < end:
        time.sleep(1)
        if not all(rank.is_alive() for rank in ranks):
            break
        with contextlib.suppress(OSError):
            answers.append(ask("fr_trace_json", folder, port))
            if answers[-equal:] == equal * answers[-1:]:
                stacks = ask("stacks", folder, port)
    for rank in ranks:
        rank.join(0 if stacks else 3)
        rank.kill()
    return {"stacks": stacks, "calls": answers[-1] if answers else []}


if __name__ == "__main__":
    print(json.dumps([watch(*job) for job in json.loads(sys.argv[1])]))
