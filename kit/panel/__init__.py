"""`explore`: turn an experiment's knobs, measure, look.

`choices` says what can be turned, `driver` runs one measurement in a thread of its own,
`results` keeps what was measured, `drawing` makes pictures and tables of it, `view` has
the controls, `panel` ties them together. ipywidgets is imported when a panel is shown.
"""

from kit.panel.panel import Panel, explore

__all__ = ["Panel", "explore"]
