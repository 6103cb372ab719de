"""Links of documents and notebooks lead somewhere."""

import pytest
from links import find_broken_links
from project import ROOT, own_files

PAGES = [path for path in own_files() if path.suffix in (".ipynb", ".md")]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_readers_click_leads_somewhere(path):
    assert not list(find_broken_links(path))
