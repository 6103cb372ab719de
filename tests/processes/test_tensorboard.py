"""`prepare_tensorboard`: fresh folders, and a server that ends with its kernel."""

import contextlib
import os
import signal
import socket
import subprocess
import sys

import psutil
import pytest
from helpers import wait_until

from kit.experiment import ExperimentError
from kit.tools import prepare_tensorboard

#: What a kernel does; then it stays until it is ended.
PARENT = """
import sys, time
from pathlib import Path
from tensorboard import manager
from torch.utils.tensorboard import SummaryWriter
from kit.tools import prepare_tensorboard

logs = prepare_tensorboard(sys.argv[1])
with SummaryWriter(logs / "run") as writer:
    writer.add_scalar("loss", 1.0, 0)
made = manager.start(["--logdir", str(logs), "--port", sys.argv[2]])
if isinstance(made, manager.StartLaunched):
    print(made.info.pid, made.info.port, flush=True)
    time.sleep(600)
print("failed", made.stderr, flush=True)
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    """An environment of the test's own; TensorBoard notes its servers in TMPDIR."""
    for name in ("BINARY", "PROXY_URL"):
        monkeypatch.setenv(f"TENSORBOARD_{name}", "")
        monkeypatch.delenv(f"TENSORBOARD_{name}")
    monkeypatch.delenv("JUPYTERHUB_SERVICE_PREFIX", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))


@contextlib.contextmanager
def parent(tmp_path, port=0):
    """Start a process that starts TensorBoard, as the magic does."""
    command = [sys.executable, "-c", PARENT, str(tmp_path / "runs"), str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process, lambda: process.stdout.readline().split()
    finally:
        process.kill()
        process.stdout.close()
        process.wait()


def answers(port):
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    return False


def is_there(pid):
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def listening(pid):
    """The addresses at which a process and its children listen."""
    found = psutil.Process(pid)
    connections = [
        connection
        for process in (found, *found.children(recursive=True))
        for connection in process.net_connections(kind="inet")
    ]
    return {c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN}


def test_each_call_makes_a_fresh_folder(tmp_path):
    (tmp_path / "runs" / "7").mkdir(parents=True)
    (tmp_path / "runs" / "notes").mkdir()
    made = [prepare_tensorboard(tmp_path / "runs") for _ in range(2)]
    assert [path.name for path in made] == ["8", "9"]
    assert all(path.is_dir() for path in made)


def test_the_magic_starts_the_server_that_ends_with_the_kernel(tmp_path):
    prepare_tensorboard(tmp_path / "runs")
    server = os.environ["TENSORBOARD_BINARY"]
    assert os.path.basename(server).startswith("kit-tensorboard")
    assert os.access(server, os.X_OK)
    assert "TENSORBOARD_PROXY_URL" not in os.environ


def test_on_a_hub_it_is_shown_through_the_proxy(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", "/user/ada/")
    prepare_tensorboard(tmp_path / "runs")
    assert os.environ["TENSORBOARD_PROXY_URL"] == "/user/ada/proxy/%PORT%/"
    monkeypatch.setenv("TENSORBOARD_PROXY_URL", "/mine/%PORT%/")
    prepare_tensorboard(tmp_path / "runs")
    assert os.environ["TENSORBOARD_PROXY_URL"] == "/mine/%PORT%/"


@pytest.mark.parametrize("place", ["runs", "runs/below"])
def test_a_folder_that_cannot_be_written_is_named(tmp_path, place):
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(ExperimentError) as caught:
        prepare_tensorboard(tmp_path / place)
    first, second = str(caught.value).splitlines()
    assert f"folder={str(tmp_path / place)!r} cannot be written" in first
    assert "may write" in second
    assert "TENSORBOARD_BINARY" not in os.environ


def test_without_tensorboard_it_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ExperimentError, match=r"not installed.\n.*pip install"):
        prepare_tensorboard(tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_without_the_kits_script_it_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(ExperimentError, match="make lab"):
        prepare_tensorboard(tmp_path / "runs")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_server_is_local_and_ends_with_whoever_started_it(tmp_path, how):
    with parent(tmp_path) as (process, say):
        pid, port = map(int, say())
        assert answers(port)
        assert listening(pid) <= {"127.0.0.1", "::1"} and listening(pid)
        process.send_signal(how)
        process.wait()
        wait_until(lambda: not is_there(pid), 20)
        assert not answers(port)


def test_a_port_that_is_taken_is_named_with_a_way_out(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with parent(tmp_path, port) as (process, _):
            said = process.stdout.read()
    assert said.startswith("failed") and str(port) in said
    assert "Without --port, TensorBoard takes one that is free." in said
