"""Ordinary loops in other people's shapes are diagnosed; none ends with an error."""

import pytest
from ordinary import LOOPS

import kit

pytestmark = pytest.mark.usefixtures("quick")


@pytest.mark.parametrize("loop", LOOPS)
def test_an_ordinary_loop_is_diagnosed_without_an_error(loop):
    found = kit.diagnose(loop)
    assert sum(found.shares.values()) == pytest.approx(1)
    assert found.sentence() in repr(found)
