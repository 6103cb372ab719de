"""Plausible wrong answers to the exercises of chapter 02: the checks refuse them."""

import functools

import torch
from torch.nn import functional as F
from torch.profiler import record_function


def sum_of_totals(events):
    return sum(event.cpu_time_total for event in events)


def from_first_to_last(events):
    ends = [event.time_range.end for event in events]
    return max(ends) - min(event.time_range.start for event in events)


def train(model, optimizer, batches, *, loss_outside=False, zeroes=True):
    while True:
        with record_function("load"):
            inputs, labels = next(batches)
        with record_function("forward"):
            outputs = model(inputs)
            loss = None if loss_outside else F.cross_entropy(outputs, labels)
        with record_function("backward"):
            if zeroes:
                optimizer.zero_grad()
            if loss_outside:
                loss = F.cross_entropy(outputs, labels)
            loss.backward()
        with record_function("update"):
            optimizer.step()
        yield len(labels)


loss_outside = functools.partial(train, loss_outside=True)
never_zeroes = functools.partial(train, zeroes=False)


def backward_within_forward(model, optimizer, batches):
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


def find_norm(model):
    grads = [weight.grad for weight in model.parameters()]
    return torch.nn.utils.get_total_norm(grads)


def count_hits(outputs, labels):
    return (outputs.argmax(dim=1) == labels).sum()


def adds_up_the_norms(model, optimizer, inputs, labels):
    optimizer.zero_grad()
    outputs = model(inputs)
    loss = F.cross_entropy(outputs, labels)
    loss.backward()
    norm = sum(weight.grad.norm() for weight in model.parameters())
    optimizer.step()
    return loss.detach(), count_hits(outputs, labels), norm


def calls_the_model_twice(model, optimizer, inputs, labels):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs), labels)
    loss.backward()
    with torch.no_grad():
        hits = count_hits(model(inputs), labels)
    norm = find_norm(model)
    optimizer.step()
    return loss.detach(), hits, norm


def reads_each_norm(model, optimizer, inputs, labels):
    optimizer.zero_grad()
    outputs = model(inputs)
    loss = F.cross_entropy(outputs, labels)
    loss.backward()
    norms = [weight.grad.norm().item() for weight in model.parameters()]
    optimizer.step()
    hits = count_hits(outputs, labels)
    return loss.detach(), hits, sum(norm**2 for norm in norms) ** 0.5


WRONG = {
    "busy": [sum_of_totals, from_first_to_last],
    "labelled": [loss_outside, backward_within_forward, never_zeroes],
    "lean": [adds_up_the_norms, calls_the_model_twice, reads_each_norm],
}
