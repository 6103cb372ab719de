import sys
import timeit

import torch
from torch import nn


class Block(nn.Module):
    norm = staticmethod(lambda x: nn.functional.layer_norm(x, x.shape[-1:]))
    gelu = staticmethod(nn.functional.gelu)
    attend = staticmethod(nn.functional.scaled_dot_product_attention)

    def __init__(self):
        super().__init__()
        self.heads, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        heads = self.heads(self.norm(x)).unflatten(-1, (3, 4, 16))
        found = self.attend(*heads.permute(2, 0, 3, 1, 4)).transpose(1, 2).flatten(2)
        x = x + self.out(found)
        return x + self.down(self.gelu(self.up(self.norm(x))))


def make_net(block=Block):
    return nn.Sequential(nn.Embedding(256, 64), block(), block(), nn.Linear(64, 256))


if __name__ == "__main__":
    torch.set_num_threads(1)
    net, text = torch.compile(make_net(), backend=sys.argv[1]), torch.ones(8, 64).int()
    print(timeit.timeit(lambda: net(text).sum().backward(), number=1))
