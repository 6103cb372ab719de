"""The first sentence of a comparison's report: what was found, with its figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from kit.measuring.quantity import MEMORY, RUN_SECONDS, SPEED
from kit.measuring.ratio import Ratio
from kit.statistics import SAME

#: How each verdict on each quantity is said.
_SENTENCES = {
    SPEED: {
        "faster": "{name} is faster: {amount} the speed of {base} {interval}",
        "slower": "{name} is slower: {amount} the speed of {base} {interval}",
        "same": "{name} is as fast as {base}: {amount} the speed {interval}",
        "cannot tell": "Cannot tell whether {name} is faster or slower than {base}",
    },
    RUN_SECONDS: {
        "more": "{name} takes longer: {amount} the time of {base} {interval}",
        "less": "{name} takes less time: {amount} the time of {base} {interval}",
        "same": "{name} takes as long as {base}: {amount} the time {interval}",
        "cannot tell": "Cannot tell whether {name} takes more or less time than {base}",
    },
    MEMORY: {
        "more": "{name} uses more memory: {amount} as much as {base} {interval}",
        "less": "{name} uses less memory: {amount} as much as {base} {interval}",
        "same": "{name} uses as much memory as {base}: {amount} {interval}",
        "cannot tell": "Cannot tell whether {name} uses more or less memory than "
        "{base}",
    },
}
_METRIC_SENTENCES = {
    "more": "{of} is higher with {name} than with {base}: {amount} {interval}",
    "less": "{of} is lower with {name} than with {base}: {amount} {interval}",
    "same": "{of} is the same with {name} as with {base}: {amount} {interval}",
    "cannot tell": "Cannot tell whether {of} is higher or lower with {name} than with "
    "{base}",
}

#: Where the whole interval is on one side of 1, and reaches into what counts as same.
_SMALL_SENTENCES = {
    SPEED: "Cannot tell whether {name} is over 2 % {way} than {base}",
    RUN_SECONDS: "Cannot tell whether {name} takes over 2 % {way} time than {base}",
    MEMORY: "Cannot tell whether {name} uses over 2 % {way} memory than {base}",
}


def write_headline(
    of: str, name: str, base: str, ratio: Ratio, others: Sequence[Ratio] = ()
) -> str:
    """Return the finding without the reason of a doubt.

    `others` are ratios of challengers that cannot be told apart from this one; `name`
    names them, too.

    >>> write_headline(SPEED, "n=2", "n=1", Ratio(0.97, 0.96, 0.98, "slower"))
    'n=2 is slower: 0.97 × the speed of n=1 [0.96, 0.98]'
    """
    sentence = _SENTENCES.get(of, _METRIC_SENTENCES)[ratio.verdict]
    way = ""
    if ratio.is_small:
        sentence = _SMALL_SENTENCES[of]
        less, more = ("slower", "faster") if of == SPEED else ("less", "more")
        way = more if ratio.low > 1 else less
    amount, interval = ratio.amount, ratio.interval
    if others:
        summary = summarize([ratio, *others])
        amount, interval = f"about {summary.amount}", summary.interval
    words = {"of": of, "name": name, "base": base, "way": way}
    return sentence.format(**words, amount=amount, interval=interval)


def write_finding(
    of: str, name: str, base: str, ratio: Ratio, others: Sequence[Ratio] = ()
) -> str:
    """Return the finding; where nobody can tell, with the figures and the reason."""
    headline = write_headline(of, name, base, ratio, others)
    if ratio.verdict != "cannot tell":
        return headline
    if math.isnan(ratio.value):
        return f"{headline}. {ratio.reason}"
    return f"{headline}: {ratio}. {ratio.reason}"


def find_best(ratios: Mapping[str, Ratio], of: str, same: float | None) -> list[str]:
    """Return the best challenger's label, then those not to be told from it.

    Best is who surely gains most, else who seems to; beside it stands only who has the
    same verdict, so that what nobody can tell hides no finding. Two are told apart
    where the interval of their difference, by the two half-widths at right angles, lies
    outside what counts as the same: `same`, for a ratio 2 %.
    """
    gain, sign = ("faster", -1) if of == SPEED else ("less", 1)

    def rank(label: str) -> tuple[bool, bool, float]:
        ratio = ratios[label]
        is_unknown = math.isnan(ratio.value)
        return ratio.verdict != gain, is_unknown, sign * ratio.value

    ordered = sorted(ratios, key=rank)
    best = ratios[ordered[0]]
    margin = math.log(SAME) if of in _SENTENCES else same or 0.0

    def is_close(ratio: Ratio) -> bool:
        apart = abs(ratio.middle - best.middle)
        reach = math.hypot(ratio.half_width, best.half_width) + margin
        return ratio is best or (ratio.verdict == best.verdict and apart <= reach)

    return [label for label in ordered if is_close(ratios[label])]


def join_labels(labels: Sequence[str]) -> str:
    """Write labels as one; a knob's name that all of them share is said once.

    >>> join_labels(["workers=2", "workers=4"]), join_labels(["ring", "tree"])
    ('workers=2 or 4', 'ring or tree')
    """
    knob = labels[0].partition("=")[0] + "="
    if all(label.startswith(knob) and ", " not in label for label in labels):
        labels = [labels[0], *(label.removeprefix(knob) for label in labels[1:])]
    *others, last = labels
    return f"{', '.join(others)} or {last}" if others else last


def summarize(ratios: Sequence[Ratio]) -> Ratio:
    """Return the middle of ratios to two digits, and the reach of their intervals.

    >>> print(summarize([Ratio(1.7, 1.6, 1.9, "faster"), Ratio(1.9, 1.8, 2, "faster")]))
    1.8 × [1.6, 2]
    """
    first = ratios[0]
    middle = math.fsum(ratio.middle for ratio in ratios) / len(ratios)
    value = math.exp(middle) if first.unit == "×" else middle
    low = min(ratio.low for ratio in ratios)
    high = max(ratio.high for ratio in ratios)
    return Ratio(float(f"{value:.2g}"), low, high, first.verdict, unit=first.unit)
