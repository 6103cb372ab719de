"""CartPole over RPC: rank 0 learns, and the other ranks play when it asks them to.

torchrun --standalone --nproc-per-node=3 16_cartpole_rpc.py --steps 300
"""

import argparse
import os
import warnings

import gymnasium
import torch
from torch import multiprocessing, nn
from torch.distributed import rpc
from torch.distributions import Categorical


class Observer:
    def __init__(self, rank):
        self.game = gymnasium.make("CartPole-v1")
        self.game.reset(seed=rank)

    def run_episode(self, rank, agent):
        (state, _), reward, over = self.game.reset(), 0.0, False
        while not over:  # a call brings the last reward and asks for an action
            action = agent.rpc_sync().select_action(rank, reward, state)
            state, reward, fell, late, _ = self.game.step(action)
            over = fell or late
        return reward


class Agent:
    def __init__(self):
        layers = [nn.Linear(4, 128), nn.Dropout(0.6), nn.ReLU(), nn.Linear(128, 2)]
        self.policy = nn.Sequential(*layers, nn.Softmax(-1))
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=0.01)

    def select_action(self, rank, reward, state):
        choice = Categorical(self.policy(torch.from_numpy(state)))
        action = choice.sample()
        self.rewards[rank].append(reward)
        self.log_probs[rank].append(choice.log_prob(action))
        return action.item()

    def play_and_learn(self, observers):
        self.rewards = {rank: [] for rank in observers}
        self.log_probs = {rank: [] for rank in observers}
        me, games, returns = rpc.RRef(self), {}, []
        for rank, observer in observers.items():
            games[rank] = observer.rpc_async().run_episode(rank, me)
        for rank, game in games.items():
            last = game.wait()
            rewards = [*self.rewards[rank][1:], last]  # there was none before the first
            for step in reversed(range(len(rewards) - 1)):
                rewards[step] += 0.99 * rewards[step + 1]
            returns += rewards
        returns = torch.tensor(returns)
        advantages = (returns - returns.mean()) / (returns.std() + 1e-7)
        log_probs = torch.stack([x for own in self.log_probs.values() for x in own])
        self.optimizer.zero_grad()
        (-log_probs * advantages).sum().backward()
        self.optimizer.step()
        return min(map(len, self.log_probs.values()))  # a reward of 1 for each step


def train(ranks, rounds):
    agent, observers, mean = Agent(), {}, 0.0
    for rank in range(1, ranks):
        observers[rank] = rpc.remote(f"observer{rank}", Observer, args=(rank,))
    for number in range(1, rounds + 1):
        worst = agent.play_and_learn(observers)
        mean = 0.05 * worst + 0.95 * mean
        if number % 10 == 0:
            print(f"round {number}: worst game {worst}, running mean {mean:.0f}")
        if mean > 475:
            break
    verdict = "solved" if mean > 475 else f"not solved, {mean:.0f} of 475"
    print(f"{verdict}, after {number} rounds; observers: {ranks - 1}")


def run(rank, ranks, rounds):
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    warnings.filterwarnings("ignore", "You are using a Backend")  # PyTorch's own code
    name = "agent" if rank == 0 else f"observer{rank}"
    rpc.init_rpc(name, rank=rank, world_size=ranks)
    if rank == 0:
        train(ranks, rounds)
    rpc.shutdown()  # waits until every rank is here and no call is under way


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000, help="rounds of games")
    rounds = parser.parse_args().steps
    if "RANK" in os.environ:  # torchrun has started this process
        run(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), rounds)
    else:  # as in the tutorial
        os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29500")
        multiprocessing.spawn(run, args=(3, rounds), nprocs=3)
