"""Ordinary loops in other people's shapes are diagnosed; none ends with an error."""

import pytest
from benchmarks.ordinary import COMPILED, LOOPS

import kit

pytestmark = pytest.mark.usefixtures("quick")


#: Hooks of a module tracker that another test leaves in this process break it: it runs
#: at full length only, in `make bench`.
ALONE = ("gradient_penalty",)


@pytest.mark.parametrize("name", [n for n in LOOPS if n not in (*COMPILED, *ALONE)])
def test_an_ordinary_loop_is_diagnosed_without_an_error(name):
    found = kit.diagnose(LOOPS[name])
    assert sum(found.shares.values()) == pytest.approx(1)
    assert found.call == f"{name}()"
