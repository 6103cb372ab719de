"""What chapter 18 counts in a step, and what it makes of cards' figures."""

import csv

import hardware_18
import pytest
import torch
from torch import nn


def train(net, inputs, **choices):
    optimizer = torch.optim.AdamW(net.parameters(), **choices)
    while True:
        optimizer.zero_grad()
        net(inputs).sum().backward()
        optimizer.step()
        yield


def test_products_and_the_update_are_counted_with_all_that_they_move():
    net = nn.Linear(64, 32, bias=False)
    table = hardware_18.count_operations(train(net, torch.ones(8, 64), fused=True))
    products = table.loc["aten::mm"]
    assert [*products] == [2, 2 * 2 * 8 * 64 * 32, 2 * 4 * (8 * 64 + 8 * 32 + 64 * 32)]
    # Read: weights, gradients, two moments, a step; written: weights and moments.
    update = table.loc["aten::_fused_adamw_"]
    assert update["bytes"] == 4 * (64 * 32 * 7) + 4
    assert update["FLOP"] == 64 * 32


def test_operations_have_times_under_the_names_that_they_are_counted_under():
    steps = train(nn.Linear(64, 32), torch.ones(8, 64), fused=True)
    table = hardware_18.count_operations(steps)
    table["seconds"] = hardware_18.time_operations(steps)
    assert (table["seconds"] > 0).all()


def test_more_cards_and_fewer_bits_bound_less_and_an_exchange_costs():
    work = hardware_18.Work(1, 1e12, 1e9, 100, 1e9)
    wide = hardware_18.bound_step(work, "A100", "tf32_tflops")
    short = hardware_18.bound_step(work, "A100")
    assert wide["FLOP"] == pytest.approx(2 * short["FLOP"])
    assert wide["bytes"] == pytest.approx(2 * short["bytes"])
    assert wide["exchange"] == 0
    eight = hardware_18.bound_step(work, "A100", devices=8)
    assert eight["exchange"] == pytest.approx(2 * 7 / 8 * 1e9 / 300e9)


def test_a_memory_decides_for_a_resnet_and_the_h200_gains_as_much_as_it_is_faster():
    def make_layers(blocks, width):
        return nn.Sequential(*[nn.Linear(width, width) for _ in range(blocks)])

    works = hardware_18.count_works(make_layers)
    h100, h200 = (
        hardware_18.bound_step(works["ResNet-50"], card) for card in ("H100", "H200")
    )
    assert max(h100, key=h100.get) == max(h200, key=h200.get) == "bytes"
    assert h100["bytes"] / h200["bytes"] == pytest.approx(4800 / 3350)


def test_each_card_and_each_training_has_a_source_and_the_day_it_was_read():
    for name in ("cards.csv", "trainings.csv"):
        with open(hardware_18.FOLDER / name, encoding="utf-8") as file:
            for row in csv.DictReader(file):
                assert row["source"].startswith("https://"), row
                assert row["checked"] > "2026", row
