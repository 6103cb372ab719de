"""Child processes: found, named, ended; shared helpers survive."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import resource_tracker
from pathlib import Path

import psutil
import pytest
from helpers import children, forked, wait_until

import kit
from kit import life, system
from kit.experiment import ExperimentError
from kit.progress import Progress

ROOT = str(Path(kit.__file__).parents[1])
pytestmark = pytest.mark.usefixtures("smoke")


@contextlib.contextmanager
def child(target, *arguments):
    process = forked(target, *arguments)
    try:
        yield process
    finally:
        process.kill()
        process.join()


def count(counter):
    while True:
        counter.value += 1
        time.sleep(0.001)


def has_a_child_of_its_own(pids):
    with child(time.sleep, 60) as inner:
        pids.put(inner.pid)
        time.sleep(60)


def shared_counter():
    return multiprocessing.get_context("fork").Value("l", 0, lock=False)


def test_children_and_their_children_are_found():
    pids = multiprocessing.get_context("fork").SimpleQueue()
    with child(time.sleep, 60) as plain, forked_parent(pids) as parent:
        inner = pids.get()
        assert {plain.pid, parent.pid, inner} <= system.find_children()
        assert system.find_descendants(parent.pid) == {inner}
        system.end([parent.pid])
        wait_until(lambda: not system.find_alive([inner]))


@contextlib.contextmanager
def forked_parent(pids):
    context = multiprocessing.get_context("fork")
    process = context.Process(target=has_a_child_of_its_own, args=(pids,))
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


def test_ended_processes_are_no_obstacle():
    with child(time.sleep, 0) as process:
        process.join()
        pid = process.pid
    assert system.find_alive([pid]) == set()
    system.end([pid])


def test_a_stopped_child_can_be_ended():
    with child(time.sleep, 60) as process:
        psutil.Process(process.pid).suspend()
        assert system.find_alive([process.pid]) == {process.pid}
        system.end([process.pid])
        process.join(10)
        assert not process.is_alive()
        assert system.find_alive([process.pid]) == set()


def test_zombies_are_not_alive():
    process = subprocess.Popen([sys.executable, "-c", ""])
    wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE)
    assert system.find_alive([process.pid]) == set()
    process.wait()


def test_processor_time_of_children_is_counted_while_they_live_and_after():
    def burn():
        deadline = time.process_time() + 0.3
        while time.process_time() < deadline:
            pass
        time.sleep(60)

    before = system.read_children_seconds()
    with child(burn):
        wait_until(lambda: system.read_children_seconds() - before > 0.25)
        living = system.read_children_seconds()
    assert system.read_children_seconds() >= living - 0.05


# What an experiment starts


@pytest.fixture
def impatient(monkeypatch):
    """Give processes less time to end by themselves."""
    monkeypatch.setattr(life, "_GRACE_SECONDS", 0.2)
    monkeypatch.setattr(life, "_GRACE_AFTER_INTERRUPT", 0.1)


def lingering(*, started=None, ignore=False, where="step"):
    """Starts a process and never ends it."""
    code = "import time; print(flush=True); time.sleep(60)"
    if ignore:
        code = "import signal; signal.signal(15, signal.SIG_IGN); " + code
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    child.stdout.readline()
    if where == "set-up":
        raise ValueError("broken")
    for number in range(10**9):
        yield 1
        if where == "step 3" and number == 2:
            raise ValueError("broken")
        if where == "interrupt" and number == 2:
            raise KeyboardInterrupt


@pytest.mark.parametrize("ignore", [False, True], ids=["", "ignores SIGTERM"])
def test_child_that_lingers_is_ended_and_named(ignore, impatient):
    trial = kit.measure(lingering, ignore=ignore)
    assert not children()
    assert any("python" in note.lower() for note in trial.notes)
    assert "python" in repr(trial).lower()


def test_children_of_children_are_ended_too(impatient):
    def nested():
        subprocess.Popen(["sh", "-c", "sleep 61 & sleep 62; true"])
        wait_until(lambda: len(children()) >= 3)
        while True:
            yield 1

    kit.measure(nested)
    assert not children()


def test_a_child_has_time_to_end_by_itself(tmp_path):
    slow = "import time; time.sleep(0.5); open('done', 'w')"

    def checkpoints():
        while True:
            subprocess.Popen([sys.executable, "-c", slow], cwd=tmp_path)
            yield 1

    assert kit.measure(checkpoints).notes == []
    assert (tmp_path / "done").exists()


@pytest.mark.parametrize("where", ["set-up", "step 3", "interrupt"])
def test_no_child_is_left_after_an_error_or_an_interrupt(where, impatient):
    expected = KeyboardInterrupt if where == "interrupt" else ExperimentError
    begun = time.monotonic()
    with pytest.raises(expected):
        kit.measure(lingering, where=where)
    assert time.monotonic() - begun < 10
    assert not children()


def test_a_child_that_ends_by_itself_is_not_named():
    def polite():
        child = subprocess.Popen(["sleep", "60"])
        try:
            while True:
                yield 1
        finally:
            child.terminate()
            child.wait()

    trial = kit.measure(polite)
    assert trial.notes == []


def test_children_that_the_reader_had_before_are_left_alone():
    counter = shared_counter()
    with child(count, counter) as process:

        def goes_on():
            before = counter.value
            wait_until(lambda: counter.value > before)
            return True

        def look(*, variant=1):
            while goes_on():
                yield 1

        comparison = kit.compare(look, variant=[1, 2])
        assert process.is_alive()
        assert comparison.trials[0].notes == []
        assert goes_on()


linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux tells who started a child"
)


def in_a_thread(task):
    thread = threading.Thread(target=task)
    thread.start()
    return thread


@linux
def test_children_of_a_cell_beside_a_panels_experiment_are_left_alone():
    """A cell's thread was there before, so what it starts is not the experiment's."""
    counter, begun, over = shared_counter(), threading.Event(), threading.Event()
    seen = []

    def experiment():
        with child(time.sleep, 60) as own:
            yield 1
            begun.set()
            while True:
                time.sleep(0.001)
                yield int(counter.value > 0) or 1
                seen.append(own.pid)

    def cell():
        begun.wait(30)
        with child(count, counter) as beside:
            over.wait(30)
            seen.append(beside.is_alive())

    other = in_a_thread(cell)
    kit.measure(experiment, seconds=0.3)
    reached = counter.value
    wait_until(lambda: counter.value > reached)  # it was not ended
    over.set()
    other.join()
    assert seen[-1] is True
    assert not system.find_alive(seen[:1])


def test_a_step_that_does_not_end_names_the_processes_it_may_wait_for(monkeypatch):
    monkeypatch.setattr("kit.progress._LONG_STEP_SECONDS", 0.2)
    said = []

    def looks(progress):
        wait_until(lambda: said and "no step has ended" in progress.text())
        said.append(progress.text())

    class Watched(Progress):
        def __enter__(self):
            self.watcher = in_a_thread(lambda: looks(self))
            return self

        def __exit__(self, *_):
            self.watcher.join()

    monkeypatch.setattr("kit.measurement.Progress", Watched)

    def hangs():
        with child(time.sleep, 60) as worker:
            said.append(worker.pid)
            yield 1
            while not said[1:]:
                time.sleep(0.01)
            while True:
                time.sleep(0.001)
                yield 1

    kit.measure(hangs)
    pid, text = said
    assert f"({pid})" in text


def test_resource_tracker_is_shared_and_survives():
    tracker = resource_tracker._resource_tracker
    tracker._stop()

    def starts_it(*, variant=1):
        resource_tracker.ensure_running()
        while True:
            status = psutil.Process(tracker._pid).status()
            assert status != psutil.STATUS_STOPPED
            yield 1

    comparison = kit.compare(starts_it, variant=[1, 2])
    assert psutil.Process(tracker._pid).status() != psutil.STATUS_ZOMBIE
    assert comparison.trials[0].notes == []


def test_helper_that_has_only_just_been_forked_is_not_taken_for_a_worker():
    helpers = []
    command = "import time; time.sleep(60)"
    arguments = [sys.executable, "-c", command, "multiprocessing.resource_tracker"]

    def is_named(pid):
        return arguments[-1] in psutil.Process(pid).cmdline()

    def starts_it():
        pid = os.fork()
        if pid == 0:  # it is a copy of this process until it becomes the helper
            time.sleep(0.2)
            os.execv(sys.executable, arguments)
        helpers.append(pid)
        yield 1
        wait_until(lambda: is_named(pid))
        while True:
            yield 1

    try:
        trial = kit.measure(starts_it)
        assert trial.notes == []
        assert system.find_alive(helpers) == set(helpers)
        assert psutil.Process(helpers[0]).status() != psutil.STATUS_STOPPED
    finally:
        for pid in helpers:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def test_fork_server_survives_and_its_workers_do_not(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(FORK_SERVER)
    environment = {**os.environ, "KIT_SMOKE": "1", "PYTHONPATH": ROOT}
    done = subprocess.run(
        [sys.executable, script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == ["alone", "survives", "[]"], done.stderr


FORK_SERVER = """
import multiprocessing, time
import psutil
import kit
from kit import life
from multiprocessing import forkserver

life._GRACE_SECONDS = 0.1
seen = set()

def workers(*, variant=1):
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=time.sleep, args=(60,), daemon=True)
    process.start()
    pids.setdefault(variant, []).append(process.pid)
    while True:
        for other, found in pids.items():
            if other != variant:
                try:
                    seen.add(psutil.Process(found[-1]).status())
                except psutil.NoSuchProcess:
                    pass
        yield 1

pids = {}
if __name__ == "__main__":
    kit.compare(workers, variant=[1, 2])
    print("alone" if seen <= {psutil.STATUS_ZOMBIE} else seen)
    server = psutil.Process(forkserver._forkserver._forkserver_pid)
    print("survives" if server.status() != psutil.STATUS_STOPPED else "stopped")
    print([p for p in server.children() if p.status() != psutil.STATUS_ZOMBIE])
"""


def test_signal_handlers_are_the_readers_own():
    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    kit.measure(lambda: iter_forever())
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == before


def iter_forever():
    while True:
        yield 1


# What the system tells


@pytest.fixture(params=["as it is", "no lists", "no waitid"])
def told(request, monkeypatch):
    """Each way in which the kit learns of processes; not every system has all."""
    listdir = os.listdir

    def list_nothing(path):
        if str(path).startswith("/proc/"):
            raise FileNotFoundError(path)
        return listdir(path)

    if request.param == "no lists":
        monkeypatch.setattr(os, "listdir", list_nothing)
    if request.param == "no waitid":
        monkeypatch.delattr(os, "waitid", raising=False)


def test_every_way_tells_the_same_of_processes(told):
    assert system.find_children() == set()
    worker = subprocess.Popen(["sh", "-c", "sleep 60 & wait"])
    try:
        wait_until(lambda: len(system.find_children()) == 2)
        (other,) = system.find_descendants(worker.pid)
        assert system.find_children() == {worker.pid, other}
        wait_until(lambda: system.name_process(other) == "sleep")
        system.end([worker.pid])
        wait_until(lambda: not system.find_alive([worker.pid, other]))
        assert system.find_children() == set(), "a zombie is no living child"
    finally:
        worker.kill()
        worker.wait()
    assert system.name_process(worker.pid) == "process"


def test_looking_for_children_is_quick_beside_a_shared_helper():
    """It is done after every block, and helpers stay until Python ends."""
    resource_tracker.ensure_running()
    wait_until(lambda: not system.find_children())
    begun = time.thread_time()
    for _ in range(100):
        system.find_children()
    assert time.thread_time() - begun < 0.2


def test_shared_helpers_are_left_out_with_all_that_they_started():
    code = "import subprocess as s; s.run(['sleep', '60'])"
    command = [sys.executable, "-c", code, "-m", "torch._inductor.compile_worker"]
    helper = subprocess.Popen(command)
    try:
        wait_until(lambda: system.find_descendants(helper.pid))
        assert system.find_children() == set()
    finally:
        system.end([helper.pid])
        helper.wait()


linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@linux_only
def test_a_fork_shares_its_memory_until_it_writes():
    filled = bytearray(os.urandom(32_000_000))
    reader, writer = os.pipe()

    def tell():
        before = system.private_bytes()
        filled[::4096] = bytes(len(filled[::4096]))
        os.write(writer, str(system.private_bytes() - before).encode())

    forked(tell).join()
    grown = int(os.read(reader, 100))
    os.close(reader)
    os.close(writer)
    assert grown == pytest.approx(len(filled), rel=0.1)
