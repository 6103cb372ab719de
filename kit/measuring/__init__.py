"""From a generator to a verdict.

Read downward: `compare` asks and makes rounds of runs; `run` drives one; `settings` is
what a run puts back; `experiment` is what can be measured; `records` holds what was
measured; `verdict` judges it; `report` shows it.
"""
