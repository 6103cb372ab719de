"""Colours, markers and a hatch."""

# Okabe and Ito's colours, darkened until text in them has a contrast of 4.5 on a card.
COLOURS = {
    "measured": "#0072B2",
    "baseline": "#7A828A",
    "predicted": "#B84700",
    "recorded": "#A5427A",
    "slow": "#B84700",
    "zone": "#E4E8EC",
    "ink": "#1F2328",
    "muted": "#57606A",
    "grid": "#E9ECEF",
    "border": "#D0D7DE",
    "card": "#FDFDFC",
}
SERIES_COLOURS = (COLOURS["measured"], "#00755A", "#855600", "#5B4FA8", COLOURS["ink"])
HATCH = "////"  # of the baseline, so that colour is not all
MARKERS = ("o", "s", "^", "D", "v", "P")
