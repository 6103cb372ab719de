"""A panel whose choice is on how many ranks an experiment runs."""

import torch.distributed as dist
from front_end import HTML, alt_of, rows_of

import kit


def train(*, pause=1):
    while True:
        dist.barrier()
        yield pause * dist.get_world_size()


def test_a_panel_compares_numbers_of_ranks(quick, monkeypatch):
    monkeypatch.setenv("KIT_STATIC", "1")
    pages = []
    monkeypatch.setattr("IPython.display.display", lambda x, raw: pages.append(x[HTML]))
    with kit.start_ranks(2) as ranks:
        panel = kit.explore(train, on=[ranks[:1], ranks], pause=[1, 4])
        assert repr(panel) == "Panel of train: ranks, pause"
        panel._ipython_display_()
    places = [f"ranks={n}, pause={pause}" for n in (1, 2) for pause in (1, 4)]
    assert [row[0] for row in rows_of(pages[0])] == places
    assert all(place in alt_of(pages[0]) for place in places)
