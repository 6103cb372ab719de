"""Everyday questions, answered by the kit and by plain loops.

`pairs` has the questions, `fresh` is what a fresh process does, `running` starts such
processes, `judging` holds the kit's answers beside those of the plain loops.
"""
