"""Plausible wrong answers to the exercises of chapter 03: the checks refuse them."""


def pick_kernels(events):
    return [event for event in events if event["cat"] == "kernel"]


def sum_of_lengths(events):
    kernels = pick_kernels(events)
    begin = min(kernel["ts"] for kernel in kernels)
    end = max(kernel["ts"] + kernel["dur"] for kernel in kernels)
    return 1 - sum(kernel["dur"] for kernel in kernels) / (end - begin)


def of_all_events(events):
    begin = min(event["ts"] for event in events)
    end = max(event["ts"] + event["dur"] for event in events)
    return 1 - sum(kernel["dur"] for kernel in pick_kernels(events)) / (end - begin)


def find_starts(events):
    return [event["ts"] for event in events if event["name"] == "gloo:all_reduce"]


def in_the_order_of_the_file(traces):
    exchanges = zip(*map(find_starts, traces), strict=True)
    return [starts.index(max(starts)) for starts in exchanges]


def who_waits_longest(traces):
    exchanges = zip(*(sorted(find_starts(events)) for events in traces), strict=True)
    return [starts.index(min(starts)) for starts in exchanges]


WRONG = {
    "culprit": ["clip", "item", ["track"]],
    "idle": [sum_of_lengths, of_all_events],
    "late": [in_the_order_of_the_file, who_waits_longest],
}
