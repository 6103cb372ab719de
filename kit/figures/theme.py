"""Colours, markers and hatches."""

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
#: What a step's time goes to, in the order of drawing, in words for readers.
PHASES = {
    "input": "waiting for data",
    "copies": "copies to the device",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "communication": "other ranks",
    "sync": "waiting for the device",
    "python": "code outside PyTorch",
}
#: The fill, the text on it and the hatch of each phase; "" is anything else. They stay
#: apart for the colour-blind, and in grey the hatches tell them apart.
PHASE_LOOKS = {
    "input": ("#B84700", "#FFFFFF", "///"),
    "copies": ("#F0A830", "#1F2328", "..."),
    "forward": ("#6CB8E6", "#1F2328", ""),
    "backward": ("#2B4C9B", "#FFFFFF", "\\\\\\"),
    "optimizer": ("#3FA887", "#1F2328", "xxx"),
    "communication": ("#A5427A", "#FFFFFF", "---"),
    "sync": ("#EFE07A", "#1F2328", "|||"),
    "python": ("#5F5446", "#FFFFFF", "++"),
    "": ("#C4CBD2", "#1F2328", "//"),
}
#: Of a panel's controls. What is not the kit's own colour is JupyterLab's theme's, so
#: that dark stays dark.
PANEL_STYLE = f"""
.kit-panel {{ border: 1px solid var(--jp-border-color2, #d0d7de); padding: 14px 16px;
  border-radius: 10px; background: var(--jp-layout-color1, #fff); max-width: 868px;
  box-sizing: border-box; overflow: visible; }}
.kit-panel .widget-html-content {{ line-height: 1.45; font-size: 14px; }}
.kit-panel .kit-title {{ font-size: 16px; font-weight: 600; }}
.kit-panel .kit-label {{ font-weight: 600; font-size: 13px; }}
.kit-panel .kit-muted {{ opacity: .75; font-size: 13px; }}
.kit-panel .widget-button, .kit-panel .widget-toggle-button {{ border-radius: 6px;
  height: 32px; line-height: 32px; box-shadow: none; margin: 0; }}
.kit-panel .widget-toggle-buttons > div {{ display: flex; gap: 6px; flex-wrap: wrap; }}
.kit-panel .widget-toggle-button {{ min-width: 44px; }}
.kit-panel .kit-picture {{ min-height: 300px; }}
.kit-panel .kit-placeholder {{ display: flex; min-height: 296px; border-radius: 8px;
  flex-direction: column; align-items: center; justify-content: center;
  background: {COLOURS["card"]}; color: {COLOURS["ink"]};
  border: 1px solid {COLOURS["border"]}; }}
.kit-panel .kit-history .widget-html-content > div {{ max-width: none !important; }}
.kit-panel .widget-toggle-button.mod-active, .kit-panel .kit-run {{
  background: {COLOURS["measured"]}; color: #fff; font-weight: 600; }}
.kit-panel .kit-run:hover:enabled {{ background: #005a8e; color: #fff; }}
.kit-panel button:focus-visible, .kit-panel select:focus-visible,
.kit-panel .noUi-handle:focus-visible {{
  outline: 2px solid {COLOURS["predicted"]} !important;
  outline-offset: 2px !important; }}
.kit-panel .noUi-handle {{ background: {COLOURS["measured"]} !important; }}
.kit-panel .kit-progress .progress, .kit-panel .kit-progress {{ height: 6px;
  border-radius: 3px; overflow: hidden; }}
.kit-panel .kit-progress .progress-bar {{ background: {COLOURS["measured"]}; }}
.kit-panel .kit-status {{ min-height: 22px; font-variant-numeric: tabular-nums; }}
.kit-panel .kit-failed {{ border-left: 4px solid {COLOURS["slow"]}; padding-left: 10px;
  white-space: pre-wrap; }}
.kit-panel details {{ margin: 6px 0 0 14px; font-size: 13px; }}
.kit-panel details pre {{ font-size: 12px; overflow-x: auto; }}
"""
