"""Draw what needs no data, as SVG files that read in light and dark.

    python tutorials/scripts/draw.py

It prints each file's line of Markdown, with its alt text. What is drawn of data is
drawn in the notebooks, by `tutorials/drawing.py` too.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

TUTORIALS = Path(__file__).parents[1]
IMAGES = TUTORIALS.parent / "images"
sys.path.insert(0, str(TUTORIALS))

from drawing import Drawing  # noqa: E402
from drawings_01 import draw_path  # noqa: E402

#: How many bits each format has for the exponent and for the mantissa.
BITS = {
    "float32": (8, 23),
    "tfloat32": (8, 10),
    "bfloat16": (8, 7),
    "float16": (5, 10),
    "float8_e5m2": (5, 2),
    "float8_e4m3": (4, 3),
    "float4_e2m1": (2, 1),
}


def draw_rounds() -> Drawing:
    """Draw a pair of rounds: who starts first differs."""
    title = (
        "A pair of rounds: stretches take turns, and the second round swaps the order"
    )
    alt = (
        "Round 0 sets up A, then B, and times stretches in the order A B B A; round 1 "
        "sets up B, then A, and times B A A B. Two such rounds are a pair"
    )
    drawing = Drawing(title, columns=13, rows=2.4, alt=alt)
    roles = {"A": "baseline", "B": "measured"}
    for row, order in enumerate(("ABBA", "BAAB")):
        blocks = []
        for number, name in enumerate(order[:2]):
            start = 1.5 * number
            blocks.append((start, start + 1.4, f"set up {name}", "zone"))
        for number, name in enumerate(order):
            start = 3.2 + 2 * number
            blocks.append((start, start + 1.9, f"time {name}", roles[name]))
        blocks.append((11.3, 13, "close both", "zone"))
        drawing.lane(row, f"round {row}", blocks)
    drawing.arrow((0, 2.3), (13, 2.3), "time")
    return drawing


def draw_pieces() -> Drawing:
    """Draw the graphs of an operation without and with a name."""
    drawing = Drawing(
        "With a name, the operation is part of one graph",
        columns=12,
        rows=2,
        alt=(
            "Above: a graph with x * 2, then SciPy outside, then a graph with + 1 and "
            "sum. Below: one graph with x * 2, cosine, + 1 and sum"
        ),
    )
    pieces = [
        (0, 2.6, "graph: x * 2", "forward"),
        (3, 8, "Python, SciPy and pieces of graph", "zone"),
        (8.4, 12, "graph: + 1, sum", "forward"),
    ]
    drawing.lane(0, "Function", pieces)
    whole = [(0, 12, "one graph: x * 2, cosine, + 1, sum", "forward")]
    drawing.lane(1, "custom_op", whole)
    return drawing


def draw_stopwatches() -> Drawing:
    """Draw what Python and a device do, and from where to where stopwatches run."""
    drawing = Drawing(
        "Three mistakes, and a stopwatch that is right",
        columns=12,
        rows=6.2,
        alt=(
            "Python sets up until 3, queues two steps, waits until 6.2, queues five "
            "more until 7.2, and waits until 11.4. The device makes one step from "
            "3.2 to 5.2, which takes twice as long as others, and five from 6.4 to "
            "11.4. Not waiting: from 6.2 to 7.2. No warm-up: from 3 to 5.2. Set-up "
            "counted: from 0 to 11.4. Right: from 6.2 to 11.4"
        ),
    )
    python = [(0, 3, "set up", "input"), (3, 3.4, "", "forward")]
    python += [(3.4, 6.2, "wait", "zone"), (6.2, 7.2, "queue", "forward")]
    python.append((7.2, 11.4, "wait", "zone"))
    drawing.lane(0, "Python", python)
    steps = [(3.2, 5.2, "first step", "baseline"), (5.2, 6.2, "step", "measured")]
    for number in range(5):
        start = 6.4 + number
        steps.append((start, start + 1, "step", "measured"))
    drawing.lane(1, "device", steps)
    drawing.arrow((6.2, 2.9), (7.2, 2.9), "not waiting")
    drawing.arrow((3, 3.9), (5.2, 3.9), "no warm-up")
    drawing.arrow((0, 4.9), (11.4, 4.9), "set-up counted")
    drawing.arrow((6.2, 5.9), (11.4, 5.9), "right: warm, and waits at both ends")
    return drawing


def draw_turns() -> Drawing:
    """Draw two orders of A and B, and a slow moment that meets both."""
    drawing = Drawing(
        "A slow moment hits B alone, or both alike",
        columns=12,
        rows=3.2,
        alt=(
            "One after the other: four blocks of A, then four of B; a slow time covers "
            "those of B. In turns: A B B A A B B A; the same time covers two of each"
        ),
    )
    drawing.box(6.1, 0, 5.3, 2.1, "", "zone")
    roles = {"A": "baseline", "B": "measured"}
    for row, name, order in (
        (0, "one after\nthe other", "AAAABBBB"),
        (1.1, "in turns", "ABBAABBA"),
    ):
        blocks = []
        for number, letter in enumerate(order):
            start = 1 + 1.3 * number
            blocks.append((start, start + 1.2, letter, roles[letter]))
        drawing.lane(row, name, blocks)
    drawing.arrow(
        (1, 3.1), (11.2, 3.1), "time; framed: something slows the machine down"
    )
    return drawing


def draw_self_and_total() -> Drawing:
    """Draw one line of Python, what it calls, and the self time of each."""
    drawing = Drawing(
        "Total time counts a moment for everyone around it, self time once",
        columns=12,
        rows=3,
        alt=(
            "Three rows of boxes over time. The label score lasts from 0 to 12. Inside "
            "it, the operation index lasts from 1 to 8 and the operation add from 9 to "
            "11. Inside index, the operation select lasts from 2 to 4 and once more "
            "from 5 to 7. Self times: score 3, index 3, select 4, add 2"
        ),
    )
    drawing.lane(0, "label", [(0, 12, "score: total 12, self 12 − 7 − 2 = 3", "zone")])
    operations = [
        (1, 8, "index: total 7, self 7 − 2 − 2 = 3", "measured"),
        (9, 11, "add: 2", "measured"),
    ]
    drawing.lane(1, "operations", operations)
    selections = [(2, 4, "select: 2", "baseline"), (5, 7, "select: 2", "baseline")]
    drawing.lane(2, "inside index", selections)
    return drawing


def draw_overlap() -> Drawing:
    """Draw three steps that read and train by turns, and three that overlap."""
    drawing = Drawing(
        "The same work: by turns above, at once below",
        columns=15,
        rows=3.4,
        alt=(
            "Three rows over time. In the first, one process reads batch 1, trains on "
            "it, reads batch 2, trains on it, and so on: three batches take 15. In the "
            "other two rows, a worker reads one batch after the other, and the main "
            "process trains on each as soon as it is there: three batches take 11"
        ),
    )
    by_turns = []
    for batch in range(3):
        by_turns.append((5 * batch, 5 * batch + 3, f"read {batch + 1}", "zone"))
        by_turns.append(
            (5 * batch + 3, 5 * batch + 5, f"train {batch + 1}", "measured")
        )
    drawing.lane(0, "one process", by_turns)
    reads = [(3 * b, 3 * b + 3, f"read {b + 1}", "zone") for b in range(3)]
    trains = [(3 * b + 3, 3 * b + 5, f"train {b + 1}", "measured") for b in range(3)]
    drawing.lane(1.4, "a worker", reads)
    drawing.lane(2.4, "the main process", trains)
    return drawing


def draw_host_and_device() -> Drawing:
    """Draw Python and a device with short work, and with long work."""
    drawing = Drawing(
        "Short work leaves the device idle, long work keeps it busy",
        columns=16,
        rows=4.4,
        alt=(
            "Four rows over time. In the first two, Python starts operations 1 to 7, "
            "each of which takes it 2; the device does each in 0.4 and is idle until "
            "the next one. In the other two, Python starts operations 1 to 7 as fast, "
            "and the device needs 4.5 for each: it works without a gap, far behind"
        ),
    )
    starts = [(2 * i, 2 * i + 2, f"start {i + 1}", "zone") for i in range(7)]
    short = [(2 * i + 2, 2 * i + 2.4, "", "measured") for i in range(7)]
    long = [(2 + 4.5 * i, 6.5 + 4.5 * i, f"work {i + 1}", "measured") for i in range(3)]
    drawing.lane(0, "Python", starts)
    drawing.lane(1, "device, short work", short)
    drawing.lane(2.4, "Python", starts)
    drawing.lane(3.4, "device, long work", long)
    return drawing


def draw_trips() -> Drawing:
    """Draw five operations that each go to memory and back, and one loop."""
    drawing = Drawing(
        "Five operations go to memory ten times, one loop goes twice",
        columns=15,
        rows=2,
        alt=(
            "Two rows of boxes. Five operations: read, times 2, write, read, plus 1, "
            "write, and so on for relu, square and minus 3. One loop: read, times 2, "
            "plus 1, relu, square, minus 3, write"
        ),
    )
    names = ["×2", "+1", "relu", "x²", "−3"]
    five = []
    one = [(0, 1, "read", "baseline"), (6, 7, "write", "baseline")]
    for number, name in enumerate(names):
        left = 3 * number
        five.append((left, left + 1, "read", "baseline"))
        five.append((left + 1, left + 2, name, "measured"))
        five.append((left + 2, left + 3, "write", "baseline"))
        one.append((number + 1, number + 2, name, "measured"))
    drawing.lane(0, "five operations", five)
    drawing.lane(1, "one loop", one)
    return drawing


def draw_breaks() -> Drawing:
    """Draw the graphs of a function with three breaks, and of its repair."""
    drawing = Drawing(
        "Three lines of Python cut one graph into four",
        columns=15,
        rows=2,
        alt=(
            "Two rows of boxes. broken: a graph with std, Python's .item(), a graph "
            "with a division, Python's print, a graph with abs and max, Python's if, "
            "a graph with clamp, exp and sum. repaired: one graph with std, division, "
            "clamp, exp and sum"
        ),
    )
    broken = [
        (0, 1.5, "std", "measured"),
        (1.5, 3.5, ".item()", "zone"),
        (3.5, 5, "/", "measured"),
        (5, 7, "print", "zone"),
        (7, 9.5, "abs, max", "measured"),
        (9.5, 11, "if", "zone"),
        (11, 15, "clamp, exp, sum", "measured"),
    ]
    drawing.lane(0, "broken", broken)
    drawing.lane(1, "repaired", [(0, 7, "std, /, clamp, exp, sum", "measured")])
    return drawing


def draw_formats() -> Drawing:
    """Draw the bits of each format: sign, exponent, mantissa."""
    told = "; ".join(f"{name}: 1, {e}, {m}" for name, (e, m) in BITS.items())
    drawing = Drawing(
        "The exponent's bits are range, the mantissa's are precision",
        columns=32,
        rows=len(BITS),
        alt=f"Bits of sign, exponent and mantissa. {told}",
    )
    for row, (name, (exponent, mantissa)) in enumerate(BITS.items()):
        texts = str(exponent), str(mantissa)
        if name == "float32":
            texts = f"{exponent} exponent", f"{mantissa} mantissa"
        start = 1 + exponent
        blocks = [
            (0, 1, "±", "zone"),
            (1, start, texts[0], "predicted"),
            (start, start + mantissa, texts[1], "measured"),
        ]
        drawing.lane(row, name, blocks)
    return drawing


def draw_neighbors() -> Drawing:
    """Draw the gaps between numbers just above 1, and an update of 0.001."""
    drawing = Drawing(
        "An update of 0.001 is less than half a gap of bfloat16",
        columns=20,
        rows=3,
        alt=(
            "A number line from 1 to 1.02. bfloat16 has numbers at 1, 1.0078 and "
            "1.0156, float16 has one every 0.00098. An update of 0.001 is an eighth of "
            "bfloat16's gap, and a little more than float16's"
        ),
    )
    gap = 1000 * 2**-7
    wide = [
        (0, gap, "from 1 to 1.0078", "measured"),
        (gap, 2 * gap, "to 1.0156", "measured"),
        (2 * gap, 20, "…", "measured"),
    ]
    drawing.lane(0, "bfloat16", wide)
    gap = 1000 * 2**-10
    drawing.lane(
        1, "float16", [(i * gap, (i + 1) * gap, "", "measured") for i in range(20)]
    )
    drawing.lane(2, "0.001", [(0, 1, "", "predicted")])
    return drawing


def draw_bytes() -> Drawing:
    """Draw what a training keeps for each weight, in bytes."""
    ways = {
        "float32": (4, 0, 4, 8),
        "masters": (2, 4, 2, 8),
        "masters, means 16": (2, 4, 2, 4),
        "weights 16": (2, 0, 2, 8),
        "all 16": (2, 0, 2, 4),
    }
    names = "weight", "master", "gradient", "two means"
    roles = "measured", "predicted", "recorded", "baseline"
    told = []
    for way, sizes in ways.items():
        parts = [f"{name} {size}" for name, size in zip(names, sizes, strict=True)]
        told.append(f"{way}: {', '.join(parts)}, together {sum(sizes)}")
    drawing = Drawing(
        "Bytes for each weight: masters cost what 16 bits have saved",
        columns=16,
        rows=len(ways),
        alt="; ".join(told),
    )
    for row, (way, sizes) in enumerate(ways.items()):
        blocks, start = [], 0
        for name, size, role in zip(names, sizes, roles, strict=True):
            if size:
                blocks.append((start, start + size, name, role))
            start += size
        drawing.lane(row, f"{way}: {start}", blocks)
    return drawing


def draw_groups() -> Drawing:
    """Draw a matrix with one scale per tensor, row, and block."""
    drawing = Drawing(
        "One scale for how many? Each colored group has its own",
        columns=35,
        rows=5.2,
        alt=(
            "The same matrix four times. One scale for the tensor; one for each row; "
            "one for each half of a row; one for each quarter of a row"
        ),
    )
    roles = ["measured", "predicted", "recorded", "baseline"]
    kinds = {"tensor": 32, "row": 8, "block": 4, "smaller block": 2}
    for number, (name, size) in enumerate(kinds.items()):
        left = 9 * number
        drawing.box(left, 0, 8, 0.8, f"one per {name}", "zone")
        for place in range(32):
            row, column = divmod(place, 8)
            group = place // size + (row if size < 8 else 0)
            role = roles[group % 4]
            drawing.box(left + column, 1 + row, 1, 1, "", role)
    return drawing


def draw_mixed_step() -> Drawing:
    """Draw one training step in mixed precision, with the places of the scaler."""
    drawing = Drawing(
        "Dark boxes have 16 bits: the copies, and the products with them",
        columns=12,
        rows=4.6,
        alt=(
            "A circle of boxes. Weights in float32 are cast to 16-bit copies, which"
            " the forward pass multiplies with the inputs; it ends in a loss in "
            "float32. From there backward in 16 bits to gradients in float32, and "
            "to the update, which changes the weights. With float16 the scaler "
            "multiplies the loss, divides the gradients, and skips an update with "
            "infinite gradients"
        ),
    )
    drawing.box(0, 0.2, 2.4, 1.2, "weights\nfloat32")
    drawing.arrow((2.4, 0.8), (3.2, 0.8), "cast")
    drawing.box(3.2, 0.2, 2.4, 1.2, "copies\n16 bits", "measured")
    drawing.arrow((5.6, 0.8), (6.4, 0.8))
    drawing.box(6.4, 0.2, 2.4, 1.2, "forward\n16 bits", "measured")
    drawing.arrow((8.8, 0.8), (9.6, 0.8))
    drawing.box(9.6, 0.2, 2.4, 1.2, "loss\nfloat32")
    drawing.arrow((10.8, 1.4), (10.8, 1.85))
    drawing.box(9.0, 1.85, 3.0, 0.7, "float16: × scale", "zone")
    drawing.arrow((10.8, 2.55), (10.8, 3.0))
    drawing.box(9.6, 3.0, 2.4, 1.2, "backward\n16 bits", "measured")
    drawing.arrow((9.6, 3.6), (7.9, 3.6), "cast")
    drawing.box(5.5, 3.0, 2.4, 1.2, "gradients\nfloat32")
    drawing.arrow((5.5, 3.6), (2.4, 3.6))
    drawing.box(2.7, 1.85, 4.6, 0.7, "float16: ÷ scale, skip if infinite", "zone")
    drawing.arrow((4.0, 2.55), (4.0, 3.6))
    drawing.box(0, 3.0, 2.4, 1.2, "update\nfloat32")
    drawing.arrow((1.2, 3.0), (1.2, 1.4))
    return drawing


def draw_machines() -> Drawing:
    """Draw the three stages of a hierarchical all-reduce: two machines, two GPUs."""
    stages = ["at first", "reduce-scatter", "all-reduce", "all-gather"]
    held = {
        0: [("0", "0"), ("0+1", ""), ("all", ""), ("all", "all")],
        1: [("1", "1"), ("", "0+1"), ("", "all"), ("all", "all")],
        2: [("2", "2"), ("2+3", ""), ("all", ""), ("all", "all")],
        3: [("3", "3"), ("", "2+3"), ("", "all"), ("all", "all")],
    }
    drawing = Drawing(
        "Between the machines, each GPU sends its own half of the tensor",
        columns=4,
        rows=5,
        alt=(
            "A table. Ranks 0 and 1 are machine A, ranks 2 and 3 machine B. Each has a "
            "tensor of two halves. At first rank r holds its own values. After a "
            "reduce-scatter inside each machine, rank 0 has 0+1 in the first half, "
            "rank 1 has 0+1 in the second, rank 2 has 2+3 in the first, rank 3 has 2+3 "
            "in the second. After an all-reduce between ranks 0 and 2, and between "
            "ranks 1 and 3, each of these halves is the sum of all. After an "
            "all-gather inside each machine, all ranks have both halves"
        ),
    )
    where = ["", "inside a machine", "between machines", "inside a machine"]
    for column, stage in enumerate(stages):
        text = f"{stage}\n{where[column]}".strip()
        drawing.box(column + 0.05, 0.02, 0.9, 0.9, text, "zone")
    for rank, row in held.items():
        blocks = []
        for column, halves in enumerate(row):
            for place, text in enumerate(halves):
                start = column + 0.08 + 0.42 * place
                role = {"": "", "all": "measured"}.get(text, "predicted")
                if len(text) == 1:
                    role = "zone"
                blocks.append((start, start + 0.42, text, role))
        drawing.lane(rank + 1, f"machine {'AB'[rank // 2]}, rank {rank}", blocks)
    return drawing


def draw_ways() -> Drawing:
    """Draw four steps of plain training over a slow link, and how to send less."""
    drawing = Drawing(
        "Over a slow link: send less each time, or less often",
        columns=24,
        rows=4,
        alt=(
            "Four rows over time, each with four steps that compute for 2. Plain: an "
            "exchange of 4 after each step, 24 in all. 16 bits: exchanges of 2, 16 in "
            "all. PowerSGD and top 1 %: packing takes 1.5, the exchange next to "
            "nothing, 15 in all. no_sync and local SGD: one exchange of 4 after all "
            "four steps, 12 in all"
        ),
    )
    plain, half, small = [], [], []
    for step in range(4):
        begin = 6 * step
        plain.append((begin, begin + 2, "step", "measured"))
        plain.append((begin + 2, begin + 6, "exchange", "communication"))
        begin = 4 * step
        half.append((begin, begin + 2, "step", "measured"))
        half.append((begin + 2, begin + 4, "half", "communication"))
        begin = 3.75 * step
        small.append((begin, begin + 2, "step", "measured"))
        small.append((begin + 2, begin + 3.5, "pack", "zone"))
        small.append((begin + 3.5, begin + 3.75, "", "communication"))
    rare = [(2 * step, 2 * step + 2, "step", "measured") for step in range(4)]
    rare.append((8, 12, "exchange", "communication"))
    drawing.lane(0, "plain", plain)
    drawing.lane(1, "16 bits", half)
    drawing.lane(2, "PowerSGD, top 1 %", small)
    drawing.lane(3, "no_sync, local SGD", rare)
    return drawing


def draw_straggler() -> Drawing:
    """Draw two ranks, one of which is slow in each step, with and without waiting."""
    drawing = Drawing(
        "Meeting in every step waits for each slow one; meeting seldom waits less",
        columns=13,
        rows=4.3,
        alt=(
            "Two ranks, four steps. In each step one of them is slow, by turns: it "
            "takes 3 in place of 1. When they exchange after every step, every step "
            "takes 3, and the other rank waits for 2: 12 in all. When they exchange "
            "once after four steps, each has had two slow steps: 8 in all"
        ),
    )
    for rank in range(2):
        waiting, apart, now = [], [], 0
        for step in range(4):
            is_slow = step % 2 == rank
            length = 3 if is_slow else 1
            text, role = ("slow", "predicted") if is_slow else ("", "measured")
            waiting.append((3 * step, 3 * step + length, text, role))
            if not is_slow:
                waiting.append((3 * step + 1, 3 * step + 3, "waits", "zone"))
            apart.append((now, now + length, text, role))
            now += length
        drawing.lane(rank, f"every step, rank {rank}", waiting)
        drawing.lane(rank + 2.3, f"local SGD, rank {rank}", apart)
    return drawing


DRAWINGS = {
    "rounds": draw_rounds,
    "00_stopwatches": draw_stopwatches,
    "00_turns": draw_turns,
    "01_path": partial(draw_path, "What does each station cost?"),
    "01_pieces": draw_pieces,
    "02_self_and_total": draw_self_and_total,
    "03_overlap": draw_overlap,
    "08_host_and_device": draw_host_and_device,
    "08_trips": draw_trips,
    "08_breaks": draw_breaks,
    "09_formats": draw_formats,
    "09_neighbors": draw_neighbors,
    "09_bytes": draw_bytes,
    "09_groups": draw_groups,
    "10_mixed_step": draw_mixed_step,
    "13_machines": draw_machines,
    "14_ways": draw_ways,
    "14_straggler": draw_straggler,
}


def main() -> None:
    """Draw all."""
    for name, draw in DRAWINGS.items():
        drawing = draw()
        drawing.save(IMAGES / f"{name}.svg")
        print(f"![{drawing.figure.alt}](../images/{name}.svg)")


if __name__ == "__main__":
    main()
