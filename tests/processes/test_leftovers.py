"""What `make test` leaves behind is found, and nothing else is blamed."""

import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from project import ROOT

LISTEN = """
import socket, time
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
time.sleep(60)
"""


@pytest.fixture
def look(tmp_path, monkeypatch):
    """Run the check with a mark and a folder for temporary files of its own."""
    monkeypatch.setenv("KIT_MAKE_TEST", uuid.uuid4().hex)
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def run(when):
        file = tmp_path.parent / f"{tmp_path.name}.json"
        script = [sys.executable, ROOT / "tests" / "leftovers.py", when, file]
        # Short: chapters that are tested meanwhile must not see what is planted.
        command = [*script, "--seconds=1"]
        return subprocess.run(command, capture_output=True, text=True)

    assert run("before").returncode == 0
    return run


def test_nothing_is_found_where_nothing_is_left(look):
    done = look("after")
    assert done.returncode == 0, done.stderr


def test_a_process_its_port_and_files_that_are_left_are_found(look, tmp_path):
    temporary = tmp_path / "folder"
    temporary.mkdir()
    shared = Path("/dev/shm", f"kit-{uuid.uuid4().hex}")
    is_linux = shared.parent.is_dir()
    command = [sys.executable, "-c", LISTEN]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            port = child.stdout.readline().strip()
            if is_linux:
                shared.touch()
            done = look("after")
        finally:
            child.kill()
            shared.unlink(missing_ok=True)
    assert done.returncode == 1
    assert f"process {child.pid}, listens at [{port}]" in done.stderr
    assert str(temporary) in done.stderr
    assert str(shared) in done.stderr or not is_linux
