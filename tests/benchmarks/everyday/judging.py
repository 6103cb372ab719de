"""Holds what the kit says about a pair beside the ratios that plain loops found."""

#: Within this ratio two are the same: the kit's own word for it.
SAME = 1.02
#: In so many pairs the kit's interval may miss what the plain loops found.
MOST_MISSES = 1


def judge(name, plain, answer):
    """Return the row of a pair: the plain ratios, the kit's answer, and the judgement.

    An interval that is unknown, with NaN for its ends, overlaps nothing.
    """
    lowest, highest = min(plain), max(plain)
    return {
        "pair": name,
        "plain": plain,
        **answer,
        "overlaps": answer["low"] <= highest and lowest <= answer["high"],
        "contradicted": is_contradicted(answer["verdict"], plain),
    }


def is_contradicted(verdict, plain):
    """Return whether all plain ratios say that a verdict is wrong.

    "cannot tell" claims nothing, so nothing contradicts it.
    """
    if verdict == "faster":
        return all(ratio < 1 for ratio in plain)
    if verdict == "slower":
        return all(ratio > 1 for ratio in plain)
    if verdict == "same":
        return not any(1 / SAME <= ratio <= SAME for ratio in plain)
    return False


def find_failed(rows):
    return [row for row in rows if "error" in row]


def find_missed(rows):
    """Return the rows whose interval holds nothing of what plain loops found."""
    return [row for row in rows if not row.get("overlaps", True)]


def find_contradicted(rows):
    return [row for row in rows if row.get("contradicted")]


def find_open(rows):
    return [row for row in rows if row.get("verdict") == "cannot tell"]


HEAD = ("pair", "plain loops", "kit", "verdict", "overlaps?", "contradicted?")


def render(rows):
    """Return the table, then what is to be said about single pairs, and the counts."""
    measured = [row for row in rows if "error" not in row]
    table = [HEAD, *map(make_cells, measured)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = []
    for cells in table:
        padded = [cell.ljust(w) for cell, w in zip(cells, widths, strict=True)]
        lines.append("  ".join(padded).rstrip())
    for row in measured:
        if row["reason"]:
            lines.append(f"{row['pair']}, {row['verdict']}: {row['reason']}")
    for row in find_failed(rows):
        lines.append(f"failed: {row['error']}")
    missed, contradicted = len(find_missed(rows)), len(find_contradicted(rows))
    lines.append(
        f"Of {len(measured)} pairs, intervals miss the plain ratios in {missed} (at "
        f"most {MOST_MISSES}), verdicts are contradicted in {contradicted} (never), "
        f"the kit cannot tell in {len(find_open(rows))}."
    )
    return "\n".join(lines)


def make_cells(row):
    lowest, highest = min(row["plain"]), max(row["plain"])
    return (
        row["pair"],
        f"{lowest:.3f} to {highest:.3f}",
        f"{row['value']:.3f} [{row['low']:.3f}, {row['high']:.3f}]",
        row["verdict"],
        "yes" if row["overlaps"] else "NO",
        "YES" if row["contradicted"] else "no",
    )
