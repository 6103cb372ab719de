"""The look of panels and of bits: they leave with their owners."""

from kit.figures.style import COLOURS

#: The fill and the text on it of each part of a number's bits. In grey
#: they are dark, middle and light.
BIT_LOOKS = {
    "sign": ("#5F5446", "#FFFFFF"),
    "exponent": ("#6CB8E6", "#1F2328"),
    "mantissa": ("#F6E3B4", "#1F2328"),
}
_BIT_STYLE = "\n".join(
    f".kit-formats .kit-bit-{part} {{ background: {fill}; color: {words}; }}"
    for part, (fill, words) in BIT_LOOKS.items()
)
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
.kit-gallery .kit-picture {{ min-height: 0; }}
.kit-gallery .widget-toggle-buttons > div {{ display: grid;
  grid-template-columns: repeat(auto-fit, minmax(33px, 1fr)); }}
.kit-gallery .widget-toggle-button {{ min-width: 0; }}
.kit-gallery .kit-guess {{ flex-direction: column; align-items: stretch; gap: 3px;
  height: auto; }}
.kit-gallery .kit-guess label {{ width: auto; max-width: none; text-align: left;
  font-weight: 600; font-size: 13px; height: auto; line-height: 1.45; }}
.kit-gallery .kit-guess select {{ width: 100%; min-height: 248px; padding: 4px;
  border: 1px solid var(--jp-border-color2, {COLOURS["border"]}); border-radius: 8px;
  font: inherit; background: var(--jp-layout-color1, {COLOURS["card"]}); }}
.kit-gallery .kit-guess option {{ padding: 2px 6px; border-radius: 4px; }}
.kit-gallery .kit-source .widget-html-content {{ min-width: 0; width: 100%; }}
.kit-gallery .kit-source pre {{ margin: 0; padding: 10px 12px; font-size: 12px;
  line-height: 1.5; overflow: auto; max-height: 420px; white-space: pre;
  box-sizing: border-box;
  border: 1px solid var(--jp-border-color2, {COLOURS["border"]}); border-radius: 8px;
  background: var(--jp-cell-editor-background, {COLOURS["card"]}); }}
.kit-gallery .kit-source pre:focus-visible {{ outline-offset: 2px;
  outline: 2px solid {COLOURS["predicted"]}; }}
.kit-gallery .kit-summary [role=status] > :first-child {{ font-weight: 600;
  font-size: 15px; }}
.kit-gallery code {{ padding: 1px 4px; border-radius: 4px; font-size: 12px;
  background: var(--jp-layout-color2, {COLOURS["grid"]}); }}
.kit-formats .kit-picture {{ min-height: 0; }}
.kit-formats .kit-bit {{ min-width: 24px; padding: 0 4px; font-family: monospace;
  font-size: 14px; }}
{_BIT_STYLE}
.kit-panel details {{ margin: 6px 0 0 14px; font-size: 13px; }}
.kit-panel details pre {{ font-size: 12px; overflow-x: auto; }}
"""
