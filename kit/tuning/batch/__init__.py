"""`find_batch_size`: which batches fit, and from which size on larger ones gain little.

`finder` is the door, `search` chooses sizes, `probe` tries one for real, `forecast`
reckons memory without any, `result` is the answer.
"""
