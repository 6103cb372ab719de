"""Plausible wrong answers to the exercises of chapter 02: checks refuse them."""

import copy

import torch
from torch.nn import functional as F
from torch.profiler import record_function


def _sum_of_totals(events):
    return sum(event.cpu_time_total for event in events)


def _from_first_to_last(events):
    ends = [event.time_range.end for event in events]
    return max(ends) - min(event.time_range.start for event in events)


def _longest(events):
    return max(event.time_range.elapsed_us() for event in events)


def _labels_only(events):
    labels = {"step", "save"}
    return sum(event.cpu_time_total for event in events if event.name in labels)


def _without_what_holds_others(events):
    return sum(event.cpu_time_total for event in events if not event.cpu_children)


def _forgets_to_return(events):
    sum(event.self_cpu_time_total for event in events)


def _train(model, optimizer, inputs, labels):
    with record_function("forward"):
        loss = F.cross_entropy(model(inputs), labels)
    with record_function("backward"):
        optimizer.zero_grad()
        loss.backward()
    with record_function("update"):
        optimizer.step()


def _loads_outside(model, optimizer, batches):
    for inputs, labels in batches:
        with record_function("load"):
            inputs, labels = inputs.to("cpu"), labels.to("cpu")
        _train(model, optimizer, inputs, labels)
        yield len(labels)


def _open_across_the_yield(model, optimizer, batches):
    while True:
        with record_function("load"):
            inputs, labels = next(batches)
        with record_function("forward"):
            loss = F.cross_entropy(model(inputs), labels)
        with record_function("backward"):
            optimizer.zero_grad()
            loss.backward()
        with record_function("update"):
            optimizer.step()
            yield len(labels)


def _loss_outside(model, optimizer, batches):
    while True:
        with record_function("load"):
            inputs, labels = next(batches)
        with record_function("forward"):
            outputs = model(inputs)
        with record_function("backward"):
            optimizer.zero_grad()
            F.cross_entropy(outputs, labels).backward()
        with record_function("update"):
            optimizer.step()
        yield len(labels)


def _label_around_all(model, optimizer, batches):
    while True:
        with record_function("step"):
            with record_function("load"):
                inputs, labels = next(batches)
            _train(model, optimizer, inputs, labels)
        yield len(labels)


def _backward_within_forward(model, optimizer, batches):
    while True:
        with record_function("load"):
            inputs, labels = next(batches)
        with record_function("forward"):
            loss = F.cross_entropy(model(inputs), labels)
            with record_function("backward"):
                optimizer.zero_grad()
                loss.backward()
        with record_function("update"):
            optimizer.step()
        yield len(labels)


def _zeroes_outside(model, optimizer, batches):
    while True:
        optimizer.zero_grad()
        with record_function("load"):
            inputs, labels = next(batches)
        with record_function("forward"):
            loss = F.cross_entropy(model(inputs), labels)
        with record_function("backward"):
            loss.backward()
        with record_function("update"):
            optimizer.step()
        yield len(labels)


def _never_zeroes(model, optimizer, batches):
    while True:
        with record_function("load"):
            inputs, labels = next(batches)
        with record_function("forward"):
            loss = F.cross_entropy(model(inputs), labels)
        with record_function("backward"):
            loss.backward()
        with record_function("update"):
            optimizer.step()
        yield len(labels)


def _ends_after_one(model, optimizer, batches):
    with record_function("load"):
        inputs, labels = next(batches)
    _train(model, optimizer, inputs, labels)
    yield len(labels)


def _yields_before_the_update(model, optimizer, batches):
    while True:
        with record_function("load"):
            inputs, labels = next(batches)
        with record_function("forward"):
            loss = F.cross_entropy(model(inputs), labels)
        with record_function("backward"):
            optimizer.zero_grad()
            loss.backward()
        yield len(labels)
        with record_function("update"):
            optimizer.step()


def _norm(model):
    grads = [weight.grad for weight in model.parameters()]
    return torch.nn.utils.get_total_norm(grads)


def _hits(outputs, labels):
    return (outputs.argmax(dim=1) == labels).sum()


def _learn(model, optimizer, inputs, labels):
    optimizer.zero_grad()
    outputs = model(inputs)
    loss = F.cross_entropy(outputs, labels)
    loss.backward()
    return loss.detach(), outputs


def _skips_the_hits(model, optimizer, inputs, labels):
    loss, _ = _learn(model, optimizer, inputs, labels)
    norm = _norm(model)
    optimizer.step()
    return loss, 0, norm


def _never_trains(model, optimizer, inputs, labels):
    with torch.no_grad():
        outputs = model(inputs)
    return F.cross_entropy(outputs, labels), _hits(outputs, labels), 0.0


def _forgets_to_step(model, optimizer, inputs, labels):
    loss, outputs = _learn(model, optimizer, inputs, labels)
    return loss, _hits(outputs, labels), _norm(model)


def _calls_the_model_twice(model, optimizer, inputs, labels):
    loss, _ = _learn(model, optimizer, inputs, labels)
    with torch.no_grad():
        hits = _hits(model(inputs), labels)
    norm = _norm(model)
    optimizer.step()
    return loss, hits, norm


def _calls_a_copy(model, optimizer, inputs, labels):
    other = copy.deepcopy(model).eval()
    loss, _ = _learn(model, optimizer, inputs, labels)
    with torch.no_grad():
        hits = _hits(other(inputs), labels)
    norm = _norm(model)
    optimizer.step()
    return loss, hits, norm


def _adds_up_the_norms(model, optimizer, inputs, labels):
    loss, outputs = _learn(model, optimizer, inputs, labels)
    norm = sum(weight.grad.norm() for weight in model.parameters())
    optimizer.step()
    return loss, _hits(outputs, labels), norm


def _clips(model, optimizer, inputs, labels):
    loss, outputs = _learn(model, optimizer, inputs, labels)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    return loss, _hits(outputs, labels), norm


def _norm_of_clipped(model, optimizer, inputs, labels):
    loss, outputs = _learn(model, optimizer, inputs, labels)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    norm = _norm(model)
    optimizer.step()
    return loss, _hits(outputs, labels), norm


def _reads_each_norm(model, optimizer, inputs, labels):
    loss, outputs = _learn(model, optimizer, inputs, labels)
    norms = [weight.grad.norm().item() for weight in model.parameters()]
    optimizer.step()
    return loss, _hits(outputs, labels), sum(norm**2 for norm in norms) ** 0.5


def _hits_one_by_one(model, optimizer, inputs, labels):
    loss, outputs = _learn(model, optimizer, inputs, labels)
    norm = _norm(model)
    guesses = outputs.argmax(dim=1)
    hits = sum(guesses[i] == labels[i] for i in range(len(labels)))
    optimizer.step()
    return loss, hits, norm


def _stays_in_eval(model, optimizer, inputs, labels):
    loss, outputs = _learn(model, optimizer, inputs, labels)
    norm = _norm(model)
    optimizer.step()
    model.eval()
    return loss, _hits(outputs, labels), norm


WRONG = {
    "culprit": ["clip", "smooth", "item", "Track", min, ["track"]],
    "busy": [
        _sum_of_totals,
        _from_first_to_last,
        _longest,
        _labels_only,
        _without_what_holds_others,
        _forgets_to_return,
    ],
    "labelled": [
        _loads_outside,
        _open_across_the_yield,
        _loss_outside,
        _label_around_all,
        _backward_within_forward,
        _zeroes_outside,
        _never_zeroes,
        _ends_after_one,
        _yields_before_the_update,
    ],
    "lean": [_forgets_to_step, _calls_the_model_twice, _reads_each_norm],
}
#: More of them, each of which takes long: `make test-all`.
MORE = {
    "lean": [
        _skips_the_hits,
        _never_trains,
        _calls_a_copy,
        _adds_up_the_norms,
        _clips,
        _norm_of_clipped,
        _hits_one_by_one,
        _stays_in_eval,
    ]
}
