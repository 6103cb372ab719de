"""Plausible wrong answers to the exercises of chapter 10: the checks refuse them."""

import torch
from torch import nn


def parameters_of(optimizer):
    return [p for group in optimizer.param_groups for p in group["params"]]


def clips_scaled_gradients(scaler, optimizer, loss, max_norm):
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(parameters_of(optimizer), max_norm)
    scaler.step(optimizer)
    scaler.update()


def steps_by_itself(scaler, optimizer, loss, max_norm):
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(parameters_of(optimizer), max_norm)
    optimizer.step()
    scaler.update()


def never_updates(scaler, optimizer, loss, max_norm):
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(parameters_of(optimizer), max_norm)
    scaler.step(optimizer)


def steps_each_part(scaler, optimizer, losses):
    for loss in losses:
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def sums_first(scaler, optimizer, losses):
    optimizer.zero_grad()
    scaler.scale(sum(losses)).backward()
    scaler.step(optimizer)
    scaler.update()


def keeps_old_gradients(scaler, optimizer, losses):
    for loss in losses:
        scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


def casts_inputs_only(module):
    return lambda *xs: module(*[x.float() for x in xs])


def switches_off_only(module):
    def run(*xs):
        with torch.autocast("cpu", enabled=False):
            return module(*xs)

    return run


def lowers_the_module(module):
    def run(*xs):
        with torch.autocast("cpu", enabled=False):
            return module.bfloat16()(*[x.bfloat16() for x in xs]).float()

    return run


class Padded(nn.Module):
    """The usual answer, with a knob for each usual mistake."""

    def __init__(self, linear, multiple, *, cut=True, scale=1.0):
        super().__init__()
        outputs = -(-linear.out_features // multiple) * multiple
        self.words = linear.out_features if cut else outputs
        self.layer = nn.Linear(linear.in_features, outputs, linear.bias is not None)
        with torch.no_grad():
            self.layer.weight[: linear.out_features] = scale * linear.weight
            if linear.bias is not None:
                self.layer.bias[: linear.out_features] = linear.bias

    def forward(self, x):
        return self.layer(x)[..., : self.words]


def does_not_cut(linear, multiple):
    return Padded(linear, multiple, cut=False)


def new_weights(linear, multiple):
    return Padded(linear, multiple, scale=0.0)


def leaves_it(linear, multiple):
    return linear


WRONG = {
    "clip_and_step": [clips_scaled_gradients, steps_by_itself, never_updates],
    "accumulate": [steps_each_part, sums_first, keeps_old_gradients],
    "keep_float32": [casts_inputs_only, switches_off_only, lowers_the_module],
    "pad_outputs": [does_not_cut, new_weights, leaves_it],
}
