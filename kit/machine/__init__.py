"""What we run on, what it can reach, how busy it is; devices, processes, memory."""

from kit.machine.facts import Fact, Machine, this_machine

__all__ = ["Fact", "Machine", "this_machine"]
