"""Panels: `explore` turns an experiment's knobs, a `Gallery` makes you guess a cause.

`Formats` takes a number apart. `face` is what all panels look like, of the widgets in
`controls`, `frame` what those that measure look like; `driver` runs one measurement in
a thread of its own, `failures` tells errors. ipywidgets is imported when a panel is
shown.

Of `explore`, `choices` says what can be turned, `results` keeps what was measured,
`drawing` makes pictures and tables of it, `view` has the controls, `panel` ties them
together. Of a gallery these are `findings`, `gallery_view` and `gallery`; number
formats have `formats` and `formats_view`.
"""

from kit.panel.formats import Formats
from kit.panel.gallery import Gallery
from kit.panel.panel import Panel, explore

__all__ = ["Formats", "Gallery", "Panel", "explore"]
