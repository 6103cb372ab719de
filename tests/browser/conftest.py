"""Chromium and JupyterLab for the browser tests; skipped where there is no browser."""

import pytest

from browser.lab import AFTER, BESIDE, Lab, launch_chromium


@pytest.fixture(scope="session")
def chromium():
    with launch_chromium() as browser:
        yield browser


@pytest.fixture(scope="module", params=[BESIDE, AFTER])
def lab(request, chromium, tmp_path_factory):
    """JupyterLab, with widget messages beside the cells, and after them."""
    with Lab(tmp_path_factory.mktemp("lab"), chromium, request.param) as made:
        yield made
