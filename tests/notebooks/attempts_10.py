"""Plausible wrong answers to the exercises of chapter 10: checks refuse them."""

import torch
from torch import nn


def _parameters(optimizer):
    return [p for group in optimizer.param_groups for p in group["params"]]


def _clips_scaled_gradients(scaler, optimizer, loss, max_norm):
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(_parameters(optimizer), max_norm)
    scaler.step(optimizer)
    scaler.update()


def _does_not_clip(scaler, optimizer, loss, max_norm):
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


def _steps_by_itself(scaler, optimizer, loss, max_norm):
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(_parameters(optimizer), max_norm)
    optimizer.step()
    scaler.update()


def _one_by_one(scaler, optimizer, loss, max_norm):
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    for p in _parameters(optimizer):
        nn.utils.clip_grad_norm_([p], max_norm)
    scaler.step(optimizer)
    scaler.update()


def _divides_again(scaler, optimizer, loss, max_norm):
    scaler.scale(loss).backward()
    for p in _parameters(optimizer):
        p.grad /= scaler.get_scale()
    nn.utils.clip_grad_norm_(_parameters(optimizer), max_norm)
    scaler.step(optimizer)
    scaler.update()


def _never_updates(scaler, optimizer, loss, max_norm):
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(_parameters(optimizer), max_norm)
    scaler.step(optimizer)


def _updates_each_part(scaler, optimizer, losses):
    optimizer.zero_grad()
    for loss in losses:
        scaler.scale(loss).backward()
        scaler.update()
    scaler.step(optimizer)


def _steps_each_part(scaler, optimizer, losses):
    for loss in losses:
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def _sums_first(scaler, optimizer, losses):
    optimizer.zero_grad()
    scaler.scale(sum(losses)).backward()
    scaler.step(optimizer)
    scaler.update()


def _keeps_old_gradients(scaler, optimizer, losses):
    for loss in losses:
        scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


def _means(scaler, optimizer, losses):
    optimizer.zero_grad()
    parts = 0
    for loss in losses:
        scaler.scale(loss).backward()
        parts += 1
    scaler.unscale_(optimizer)
    for p in _parameters(optimizer):
        p.grad /= parts
    scaler.step(optimizer)
    scaler.update()


def _without_the_scaler(scaler, optimizer, losses):
    optimizer.zero_grad()
    for loss in losses:
        loss.backward()
    optimizer.step()


def _casts_inputs_only(module):
    return lambda *xs: module(*[x.float() for x in xs])


def _casts_the_result(module):
    return lambda *xs: module(*xs).float()


def _switches_off_only(module):
    def run(*xs):
        with torch.autocast("cpu", enabled=False):
            return module(*xs)

    return run


def _lowers_the_module(module):
    def run(*xs):
        with torch.autocast("cpu", enabled=False):
            return module.bfloat16()(*[x.bfloat16() for x in xs]).float()

    return run


def _detaches(module):
    def run(*xs):
        with torch.autocast("cpu", enabled=False):
            return module(*[x.detach().float() for x in xs])

    return run


def _first_input_only(module):
    def run(x, *others):
        with torch.autocast("cpu", enabled=False):
            return module(x.float(), *[y.bfloat16() for y in others])

    return run


class _Padded(nn.Module):
    """The usual answer, with a knob for each usual mistake."""

    def __init__(self, linear, outputs, cut=True, scale=1.0):
        super().__init__()
        self.words = linear.out_features if cut else outputs
        self.layer = nn.Linear(linear.in_features, outputs, linear.bias is not None)
        with torch.no_grad():
            words = min(linear.out_features, outputs)
            self.layer.weight[:words] = scale * linear.weight[:words]
            if linear.bias is not None:
                self.layer.bias[:words] = linear.bias[:words]

    def forward(self, x):
        return self.layer(x)[..., : self.words]


def _up(size, multiple):
    return -(-size // multiple) * multiple


def _does_not_cut(linear, multiple):
    return _Padded(linear, _up(linear.out_features, multiple), cut=False)


def _rounds_down(linear, multiple):
    return _Padded(linear, linear.out_features // multiple * multiple)


def _always_one_more(linear, multiple):
    return _Padded(linear, (linear.out_features // multiple + 1) * multiple)


def _new_weights(linear, multiple):
    return _Padded(linear, _up(linear.out_features, multiple), scale=0.0)


def _leaves_it(linear, multiple):
    return linear


def _pads_the_result(linear, multiple):
    class Late(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = linear

        def forward(self, x):
            outputs = self.linear(x)
            extra = _up(outputs.shape[-1], multiple) - outputs.shape[-1]
            return nn.functional.pad(outputs, (0, extra))[..., : outputs.shape[-1]]

    return Late()


WRONG = {
    "clip_and_step": [
        _clips_scaled_gradients,
        _does_not_clip,
        _steps_by_itself,
        _one_by_one,
        _divides_again,
        _never_updates,
    ],
    "accumulate": [
        _steps_each_part,
        _sums_first,
        _keeps_old_gradients,
        _means,
        _without_the_scaler,
    ],
    "keep_float32": [
        _casts_inputs_only,
        _casts_the_result,
        _switches_off_only,
        _lowers_the_module,
        _detaches,
        _first_input_only,
    ],
    "pad_outputs": [
        _does_not_cut,
        _rounds_down,
        _always_one_more,
        _new_weights,
        _leaves_it,
        _pads_the_result,
    ],
}
