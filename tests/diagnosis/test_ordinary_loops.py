"""Ordinary loops in other people's shapes are diagnosed; none ends with an error."""

import pytest
from ordinary import LOOPS

import kit

pytestmark = pytest.mark.usefixtures("quick")


@pytest.mark.parametrize("name", LOOPS)
def test_an_ordinary_loop_is_diagnosed_without_an_error(name):
    found = kit.diagnose(LOOPS[name])
    assert sum(found.shares.values()) == pytest.approx(1)
    assert found.call == f"{name}()"
