"""TensorBoard inside a notebook, by its own magic: it shows a run, and ends with it."""

import psutil
import pytest

from browser.lab import BESIDE, wait_until

WRITE = """
from torch.utils.tensorboard import SummaryWriter

logs = "runs/1"
with SummaryWriter(f"{logs}/train") as writer:
    for step in range(20):
        writer.add_scalar("loss", 1 / (1 + step), step)
        writer.add_scalar("images per second", 100 + step, step)
"""
SHOW = """
%load_ext tensorboard
%tensorboard --logdir {logs}
"""
TAGS = """async () => {
  const found = await fetch('data/plugin/scalars/tags');
  return Object.keys((await found.json()).train || {});
}"""


#: How messages travel makes no difference here.
pytestmark = pytest.mark.parametrize("lab", [BESIDE], indirect=True, scope="package")


@pytest.fixture(scope="module")
def shown(lab):
    """A notebook that shows TensorBoard."""
    lab.write("board", [WRITE, SHOW])
    book = lab.open("board")
    yield book
    book.page.close()


@pytest.mark.timeout(180)
def test_the_scalars_are_seen_and_the_server_ends_with_the_kernel(shown):
    frame = shown.cell(1).locator("iframe").content_frame
    wait_until(lambda: frame.locator("body").inner_text(timeout=60_000).count("loss"))
    text = frame.locator("body").inner_text()
    assert "images per second" in text and "train" in text
    inside = next(f for f in shown.page.frames if f.parent_frame and f.url != "about:")
    assert set(inside.evaluate(TAGS)) == {"loss", "images per second"}
    address = inside.url
    assert address.startswith("http://127.0.0.1:")
    port = int(address.split(":")[2].partition("/")[0])
    pid = next(
        c.pid
        for c in psutil.net_connections("inet")
        if c.laddr.port == port and c.status == psutil.CONN_LISTEN
    )
    shown.page.evaluate(
        "() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()"
    )
    wait_until(lambda: not psutil.pid_exists(pid))
