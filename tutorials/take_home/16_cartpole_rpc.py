"""CartPole over RPC: rank 0 learns, and the other ranks play when it asks them to.

torchrun --standalone --nproc-per-node=3 16_cartpole_rpc.py --steps 300
"""

import argparse
import os

import gymnasium
import torch
from torch import nn
from torch.distributed import rpc
from torch.distributions import Categorical


class Observer:
    def __init__(self, number):
        self.number = number
        self.game = gymnasium.make("CartPole-v1")
        self.game.reset(seed=number)

    def run_episode(self, agent):
        state, _ = self.game.reset()
        rewards = []
        over = False
        while not over:
            action = agent.rpc_sync().select_action(self.number, state)
            state, reward, fell, late, _ = self.game.step(action)
            rewards.append(reward)
            over = fell or late
        return rewards


class Agent:
    def __init__(self, observers):
        layers = [nn.Linear(4, 128), nn.Dropout(0.6), nn.ReLU(), nn.Linear(128, 2)]
        self.policy = nn.Sequential(*layers)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=0.01)
        self.log_probs = [[] for _ in range(observers)]

    def select_action(self, number, state):
        choice = Categorical(logits=self.policy(torch.from_numpy(state)))
        action = choice.sample()
        self.log_probs[number].append(choice.log_prob(action))
        return action.item()

    def finish_episode(self, episodes):
        returns, log_probs = [], []
        for rewards, own in zip(episodes, self.log_probs, strict=True):
            for step in reversed(range(len(rewards) - 1)):
                rewards[step] += 0.99 * rewards[step + 1]
            returns += rewards
            log_probs += own
            own.clear()
        returns = torch.tensor(returns)
        advantages = (returns - returns.mean()) / (returns.std() + 1e-7)
        loss = -(torch.stack(log_probs) * advantages).sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def train(count, rounds):
    agent = Agent(count)
    me = rpc.RRef(agent)
    observers = []
    for number in range(count):
        observers.append(rpc.remote(f"rank{number + 1}", Observer, args=(number,)))
    mean = 0.0
    for played in range(1, rounds + 1):
        games = [observer.rpc_async().run_episode(me) for observer in observers]
        episodes = torch.futures.wait_all(games)
        mean = 0.05 * min(map(sum, episodes)) + 0.95 * mean
        agent.finish_episode(episodes)
        if played % 10 == 0:
            print(f"round {played}: running mean {mean:.0f}")
        if mean > 475:
            break
    verdict = "solved" if mean > 475 else f"not solved, {mean:.0f} of 475"
    print(f"{verdict}, after {played} rounds; observers: {count}")


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=1000, help="rounds of games")
rounds = parser.parse_args().steps
torch.manual_seed(0)
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
rpc.init_rpc(f"rank{rank}", rank=rank, world_size=ranks)
if rank == 0:
    train(ranks - 1, rounds)
rpc.shutdown()  # waits until every rank is here and no call is under way
