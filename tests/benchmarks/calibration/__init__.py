"""Holds `kit.measure` and `kit.compare` against truths that are known beforehand.

`works` and `neighbours` make the cases, `schedule` says how many of each, `running`
starts a fresh process per case, `measuring` is what that process does, `peers` asks the
tools that people use today, `report` judges. From the repository's root:

    python -m tests.benchmarks.calibration run --out build/calibration.jsonl
    python -m tests.benchmarks.calibration report build/calibration.jsonl
"""
