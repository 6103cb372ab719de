"""Plausible wrong answers to the exercises of chapter 18: the checks refuse them."""


def as_printed(sheet):
    return sheet["tflops"] * 1e12 / sheet["memory"], 1e9 / sheet["link"]


def both_ways(sheet):
    dense = sheet["tflops"] * 1e12 / (1 + sheet["sparse"])
    return dense / sheet["memory"], 1e9 / sheet["link"]


def always_halved(sheet):
    dense = sheet["tflops"] * 1e12 / 2
    return dense / sheet["memory"], sheet["ways"] * 1e9 / sheet["link"]


def most_flops_for_money(training, cards):
    return max(cards, key=lambda card: cards[card]["flops"] / cards[card]["price"])


def without_host(training, cards):
    def cost(card):
        compute = training["flops"] / cards[card]["flops"]
        moving = training["bytes"] / cards[card]["bandwidth"]
        launches = 4e-6 * training["operations"]
        return max(compute, moving, launches) * cards[card]["price"]

    return min(cards, key=cost)


def fastest(training, cards):
    def seconds(card):
        compute = training["flops"] / cards[card]["flops"]
        return max(compute, training["bytes"] / cards[card]["bandwidth"])

    return min(cards, key=seconds)


def times_the_launch(device, n):
    device.multiply(n)
    device.wait()
    begun = device.now()
    for _ in range(10):
        device.multiply(n)
    seconds = device.now() - begun
    device.wait()
    return 10 * 2 * n**3 / seconds


def counts_the_first(device, n):
    begun = device.now()
    for _ in range(10):
        device.multiply(n)
    device.wait()
    return 10 * 2 * n**3 / (device.now() - begun)


def half_of_the_flops(device, n):
    device.multiply(n)
    device.wait()
    begun = device.now()
    for _ in range(10):
        device.multiply(n)
    device.wait()
    return 10 * n**3 / (device.now() - begun)


WRONG = {
    "sheet": [as_printed, both_ways, always_halved],
    "choose": [most_flops_for_money, without_host, fastest],
    "boast": [times_the_launch, counts_the_first, half_of_the_flops],
}
