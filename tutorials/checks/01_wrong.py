"""Plausible wrong answers to the exercises of chapter 01: the checks refuse them."""

import torch
from torch.nn import functional as F


def address_of_the_first(a, b):
    return torch.as_tensor(a).data_ptr() == torch.as_tensor(b).data_ptr()


def same_storage(a, b):
    a, b = torch.as_tensor(a), torch.as_tensor(b)
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def equal_numbers(a, b):
    return torch.equal(torch.as_tensor(a), torch.as_tensor(b))


class Trainer:
    def __init__(self, network):
        self.network, self.average, self.best = network, 0.0, None


class KeepsTheBest(Trainer):
    def step(self, x):
        output = self.network(x)
        loss = output.square().mean()
        loss.backward()
        self.average = 0.9 * self.average + 0.1 * loss.item()
        if self.best is None or loss.item() < self.best[0]:
            self.best = loss.item(), output
        return self.average


class KeepsTheAverage(Trainer):
    def step(self, x):
        output = self.network(x)
        loss = output.square().mean()
        loss.backward()
        self.average = 0.9 * self.average + 0.1 * loss
        if self.best is None or loss.item() < self.best[0]:
            self.best = loss.item(), output.detach()
        return self.average


class DoesNotLearn(Trainer):
    @torch.no_grad()
    def step(self, x):
        output = self.network(x)
        loss = output.square().mean().item()
        self.average = 0.9 * self.average + 0.1 * loss
        if self.best is None or loss < self.best[0]:
            self.best = loss, output
        return self.average


def detaches_the_verdict(generator, discriminator, real, noise):
    loss = F.softplus(-discriminator(real)).mean()
    loss = loss + F.softplus(discriminator(generator(noise)).detach()).mean()
    loss.backward()
    return loss.item()


def freezes_for_ever(generator, discriminator, real, noise):
    generator.requires_grad_(False)
    loss = F.softplus(-discriminator(real)).mean()
    loss = loss + F.softplus(discriminator(generator(noise))).mean()
    loss.backward()
    return loss.item()


def throws_away(generator, discriminator, real, noise):
    loss = F.softplus(-discriminator(real)).mean()
    loss = loss + F.softplus(discriminator(generator(noise))).mean()
    loss.backward()
    generator.zero_grad()
    return loss.item()


def twice_the_first(sizes, seconds):
    rate = (sizes[1] - sizes[0]) / (seconds[1] - seconds[0])
    return sizes[0] + seconds[0] * rate


def through_zero(sizes, seconds):
    return 2 * seconds[0] * sizes[1] / seconds[1]


def from_the_first(sizes, seconds):
    rate = (sizes[1] - sizes[0]) / (seconds[1] - seconds[0])
    return seconds[0] * rate


WRONG = {
    "shares": [address_of_the_first, same_storage, equal_numbers],
    "no_leak": [KeepsTheBest, KeepsTheAverage, DoesNotLearn],
    "detached": [detaches_the_verdict, freezes_for_ever, throws_away],
    "knee": [twice_the_first, through_zero, from_the_first],
}
