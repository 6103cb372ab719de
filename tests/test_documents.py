"""Links of documents and notebooks, and what is said of how the kit measures."""

import math
import re
import warnings

import pytest
from adversarial import ADVERSARIAL
from benchmarks.calibration import results
from pages import find_broken_links
from project import ROOT, own_files

from kit import statistics
from kit.measuring import doubt, plan, rates, variant

PAGES = [path for path in own_files() if path.suffix in (".ipynb", ".md")]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_readers_click_leads_somewhere(path):
    assert not list(find_broken_links(path))


MEASURING = ROOT / "kit" / "MEASURING.md"


def test_the_page_shows_the_newest_calibration_and_every_adversarial_experiment():
    assert results.check_page(MEASURING) == []
    if words := results.describe_age(ROOT / "kit"):
        warnings.warn(words, stacklevel=1)
    page = MEASURING.read_text("utf-8")
    table = page.partition("<!-- adversarial -->")[2].partition("<!-- end of")[0]
    shown = {line.split("|")[1].strip() for line in table.splitlines() if "|" in line}
    assert {case.name for case in ADVERSARIAL if case.real} <= shown


def test_the_page_names_the_limits_that_the_code_has():
    """By private names: nothing else would notice that the page is out of date."""
    page = MEASURING.read_text("utf-8")
    for words in (
        f"[1/{statistics.SAME:g}, {statistics.SAME:g}]",
        f"differs by over {statistics.SAME - 1:.0%}",
        f"take over {doubt._BUSY:g} core",
        f"wait over {doubt._WAITING:.0%} of the time",
        f"stopped the process over {doubt._THROTTLED:.0%} of the time",
        f"{1000 * plan._BLOCK_SECONDS_UNDER_QUOTA:.0f} ms under a quota",
        f"at least {1000 * variant.BLOCK_SECONDS:.0f} ms",
        f"use {plan._FIRST_SHARE:.0%} of the budget",
        f"{plan._OVER_SLOW:g} times the way to a slow block",
    ):
        assert re.sub(r"(\d)%", r"\1 %", words) in page, words
    assert rates.LEAST_PAIRS == 5 and "five, which may take three times" in page
    assert plan._MOST_OVER == 3 and math.exp(plan._NARROW) == pytest.approx(1.005)
    assert plan._SHARE_OF_START == 0.25 and "a quarter of what its start" in page
    assert doubt._CHANGED == 1.2 and "off by over a fifth" in page
