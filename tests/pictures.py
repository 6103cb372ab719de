"""What tests of pictures share: no words meet, and colours can be read."""

import itertools

from matplotlib.text import Text


def ticks_out_of_sight(figure):
    """Yield the ticks that matplotlib keeps beyond the ends of an axis."""
    for axis in (x for axes in figure.axes for x in (axes.xaxis, axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        yield from (t for t in axis.get_major_ticks() if not low <= t.get_loc() <= high)


def assert_that_texts_have_room(figure):
    """No text meets another one, and none leaves the card."""
    figure.draw_without_rendering()
    shown = [
        t for t in figure.findobj(Text) if t.get_text().strip() and t.get_visible()
    ]
    shown = set(shown) - {tick.label1 for tick in ticks_out_of_sight(figure)}
    # Of the words alone: an annotation's own extent includes its line.
    boxes = {text: Text.get_window_extent(text) for text in shown}
    for (a, box), (b, other) in itertools.combinations(boxes.items(), 2):
        apart = box.x1 < other.x0 + 1 or other.x1 < box.x0 + 1
        apart = apart or box.y1 < other.y0 + 1 or other.y1 < box.y0 + 1
        assert apart, f"{a.get_text()!r} and {b.get_text()!r}"
    for text, box in boxes.items():
        inside = 0 <= box.x0 and box.x1 <= figure.bbox.x1
        assert inside and 0 <= box.y0 and box.y1 <= figure.bbox.y1, text


def luminance(colour):
    parts = (x / 12.92 if x <= 0.04 else ((x + 0.055) / 1.055) ** 2.4 for x in colour)
    return sum(k * x for k, x in zip((0.2126, 0.7152, 0.0722), parts, strict=True))
