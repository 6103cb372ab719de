"""Holds `kit.measure` and `kit.compare` against truths that are known beforehand.

`works` and `neighbours` make the cases, `schedule` says how many of each, `running`
starts a fresh process for a few, `measuring` is what that process does, `peers` asks
the tools that people use today, `report` judges, `results` stores and shows.
"""
