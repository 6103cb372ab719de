"""Panels: `explore` turns an experiment's knobs.

`choices` says what can be turned, `results` keeps what was measured, `drawing` makes
pictures and tables of it. `face` and `frame` are what a panel looks like, of the
widgets in `controls`, and `view` has the knobs; `driver` runs one measurement in a
thread of its own, `failures` tells errors, `panel` ties them together. ipywidgets is
imported when a panel is shown.
"""

from kit.panel.panel import Panel, explore

__all__ = ["Panel", "explore"]
