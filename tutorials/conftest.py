"""How nbval runs the notebooks as tests: `pytest --nbval-lax tutorials/NN_name.ipynb`.

Kernels run in quick mode, and a panel draws a picture. A test also fails where its cell
writes to stderr without the tag `stderr-is-meant`, where a panel shows no picture, and
where a process of the notebook is still there after its end.
"""

import contextlib
import os
import re
import sysconfig
import time
import uuid

import psutil
import pytest

#: Seconds: pytest-timeout ends a test after 120 (pyproject.toml), nbval a cell before.
CELL_TIMEOUT = 110.0
#: nbval waits so long for each output: on a busy machine its own 5 s are too few.
OUTPUT_TIMEOUT = 60.0
#: What a notebook started has so long to end after the notebook.
SECONDS_TO_END = 10.0
#: How warnings begin that say something of this machine, and nothing of the notebook:
#: more workers or ranks than cores, and Python 3.13.0.
OF_MACHINES = ("This DataLoader will create", "2 ranks share", "4 ranks share")
OF_MACHINES += ("Guards may run slower on Python 3.13.0",)
#: Not compared: an object's rich form, whose text is compared, and times of warnings.
NOT_COMPARED = ("text/html", "stderr")
#: The variable by which a process is known as a notebook's.
MARK = "KIT_NOTEBOOK_MARK"


def pytest_configure(config):
    """Set what every kernel sees, and how long nbval waits."""
    os.environ["KIT_QUICK"] = "1"
    os.environ["KIT_STATIC"] = "1"
    os.environ["PYTHONWARNINGS"] = ",".join(f"ignore:{words}" for words in OF_MACHINES)
    # As `jupyter` does: kernels find TensorBoard and what else is beside Python, last.
    scripts = sysconfig.get_path("scripts")
    os.environ["PATH"] = os.pathsep.join([os.environ["PATH"], scripts])
    config.option.nbval_current_env = True
    if config.option.nbval_cell_timeout > CELL_TIMEOUT:
        config.option.nbval_cell_timeout = CELL_TIMEOUT


def is_cell(item):
    """Return whether a test is a notebook's cell."""
    return hasattr(item, "cell_num")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Mark what the kernel of a notebook is going to start."""
    if is_cell(item) and item.parent.kernel is None:
        os.environ[MARK] = uuid.uuid4().hex
        item.parent.skip_compare += NOT_COMPARED


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Look at what a cell shows, after nbval has run it."""
    if not is_cell(item):
        return (yield)
    item.output_timeout = OUTPUT_TIMEOUT
    result = yield
    if faults := find_faults(item.cell, item.test_outputs):
        pytest.fail("\n".join(faults), pytrace=False)
    return result


def find_faults(cell, outputs):
    """Return what is wrong with the outputs of a cell that passed."""
    faults = []
    written = "".join(
        output.text for output in outputs if output.get("name") == "stderr"
    )
    if written and "stderr-is-meant" not in cell.metadata.get("tags", []):
        faults.append(f"the cell writes to stderr:\n{written}")
    if re.search(r"\bexplore\(", cell.source) and "<img" not in str(outputs):
        faults.append("the panel shows no picture")
    return faults


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    """After a notebook's last cell, see that nothing of it is left."""
    is_last = is_cell(item) and (nextitem is None or nextitem.parent is not item.parent)
    kernel = item.parent.kernel if is_last else None
    if kernel is not None and kernel.is_alive():
        kernel.km.shutdown_kernel()  # as Jupyter does; nbval would kill it
    result = yield
    if is_last and (left := wait_for_end(os.environ[MARK])):
        pytest.fail("left over by this notebook: " + "; ".join(left), pytrace=False)
    return result


def wait_for_end(mark):
    """Return the processes of a notebook that are left after some time to end."""
    deadline = time.monotonic() + SECONDS_TO_END
    while left := find_left_over(mark):
        if time.monotonic() > deadline:
            return left
        time.sleep(0.1)
    return []


def find_left_over(mark):
    """Return the processes with this mark."""
    left = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark:
                left.append(describe(process))
    return left


def describe(process):
    """Return a process as words, with the ports that it listens on."""
    command = " ".join(process.cmdline())[:100]
    ports = [
        str(connection.laddr.port)
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    listening = f" on port {', '.join(ports)}" if ports else ""
    return f"process {process.pid}{listening}: {command}"
