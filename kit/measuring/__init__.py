"""From a generator to a verdict.

`measurement` has `measure` and `compare`. What they are built of, from the bottom up:

- `source`: what a callable reaches, and its text; `experiment`: a callable that returns
  a generator, and its knobs
- `settings`, `state`, `shared`, `silence`: what a run finds, and must not leave behind
- `failures`: what is said of an error in the reader's code
- `variant`: an experiment with its knobs, its runs, and what they have shown
- `request`: what was asked for, as variants
- `run`: drives one run: set-up, warm-up, blocks, close
- `ratio`: from the runs of two variants to a ratio, its interval and its verdict
- `unit`, `finding`, `report`, `plot`, `comparison`: what is said and drawn of trials
- `plan`: how the seconds of a comparison are spent
"""

from kit.measuring import report

report.register()
