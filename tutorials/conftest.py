"""Settings for nbval, which runs the notebooks as tests."""

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Wait longer for a cell's output than nbval does by itself.

    After a cell has replied, nbval gives each further message 5 s. On a busy machine
    a large figure takes longer, and the wait ends as soon as the message is there.
    """
    if hasattr(item, "output_timeout"):
        item.output_timeout = 30
