"""From a generator to a verdict.

`measurement` has `measure` and `compare`. What they are built of, from the bottom up:

- `source`: what a callable reaches, and its text; `experiment`: a callable that returns
  a generator, and its knobs; `variant`: an experiment with its knobs and its runs
- `settings`, `state`, `shared`, `silence`: what a run finds, and must not leave behind;
  `failures`: what is said of an error in the reader's code
- `run`: drives one run: set-up, warm-up, blocks, close
- `quantity`, `rates`, `doubt`, `ratio`: from the runs of two variants to a verdict
- `unit`, `finding`, `report`, `plot`, `comparison`: what is said and drawn of trials
- `request`: what was asked for, as variants; `plan`: how the seconds are spent;
  `rounds`: in which order runs come
"""

from kit.measuring import report

report.register()
