"""What a fresh process does: drive a pair by a plain loop, or ask the kit about it.

Started by `running` as `python -P -m everyday.fresh PAIR TASK SECONDS`. It says that it
is ready, waits for its turn, which is a line on its standard input, and answers with
one line of JSON.
"""

import json
import sys
import time

from .pairs import PAIRS

#: What a process can be asked for: both by turns, one of them alone, the kit's answer.
BESIDE, BASELINE, CHALLENGER, KIT = "beside", "baseline", "challenger", "kit"
#: Seconds after which a plain loop turns to the other experiment.
BLOCK_SECONDS = 0.2
#: Seconds for which an experiment runs untimed before.
WARM_UP_SECONDS = 0.5


def drive(generator, seconds):
    """Make steps for so long; return the items, and the seconds that they took."""
    items = 0
    spent = 0.0
    begun = time.perf_counter()
    while spent < seconds:
        items += next(generator)
        spent = time.perf_counter() - begun
    return items, spent


def measure_rates(generators, seconds):
    """Drive generators by turns, A B B A; return the items per second of each.

    `seconds` are those of all of them together.
    """
    for generator in generators.values():
        drive(generator, WARM_UP_SECONDS)
    there_and_back = [*generators, *reversed(generators)]
    rounds = max(1, round(seconds / (BLOCK_SECONDS * len(there_and_back))))
    items = dict.fromkeys(generators, 0)
    spent = dict.fromkeys(generators, 0.0)
    for name in there_and_back * rounds:
        block_items, block_seconds = drive(generators[name], BLOCK_SECONDS)
        items[name] += block_items
        spent[name] += block_seconds
    return {name: items[name] / spent[name] for name in generators}


def set_up(pair, task):
    """Start the experiments of a plain loop, and let each make a step."""
    starts = {BASELINE: pair.baseline, CHALLENGER: pair.challenger}
    if task != BESIDE:
        starts = {task: starts[task]}
    generators = {name: start() for name, start in starts.items()}
    for generator in generators.values():
        next(generator)
    return generators


def ask_kit(compare, pair, seconds):
    """Return what `kit.compare` says about a pair."""
    experiments = {
        pair.baseline_name: pair.baseline,
        pair.challenger_name: pair.challenger,
    }
    begun = time.perf_counter()
    ratio = compare(experiments, seconds=seconds).ratio
    return {
        "value": ratio.value,
        "low": ratio.low,
        "high": ratio.high,
        "verdict": ratio.verdict,
        "reason": ratio.reason,
        "seconds": time.perf_counter() - begun,
    }


def wait_for_turn():
    """Say that all is ready and wait; end where whoever started this has gone."""
    print("ready", flush=True)
    if not sys.stdin.readline():
        sys.exit("nobody waits for an answer")


def main():
    name, task, seconds = sys.argv[1:]
    pair = PAIRS[name]
    if task == KIT:
        import kit  # here only: a plain loop runs in a process without it

        compare = kit.compare  # the kit loads it when it is first asked for
        wait_for_turn()
        answer = ask_kit(compare, pair, float(seconds))
    else:
        generators = set_up(pair, task)
        wait_for_turn()
        answer = measure_rates(generators, float(seconds))
        for generator in generators.values():
            generator.close()
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
