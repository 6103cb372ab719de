"""Chromium and JupyterLab for the browser tests; skipped where there is no browser."""

import pytest

from browser.lab import AFTER, BESIDE, Lab, launch_chromium


@pytest.fixture(scope="package")
def chromium():
    with launch_chromium() as browser:
        yield browser


@pytest.fixture(
    scope="package",  # its processes are gone before other tests look for theirs
    params=[BESIDE, pytest.param(AFTER, marks=pytest.mark.nightly)],
)
def lab(request, chromium, tmp_path_factory):
    """One JupyterLab with widget messages beside the cells; nightly one after them."""
    with Lab(tmp_path_factory.mktemp("lab"), chromium, request.param) as made:
        yield made
