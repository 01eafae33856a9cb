"""Every score of the paper's tasks, as plain functions on numbers and texts (no torch).

A metric is a pair: `*_statistics` makes one row of numbers per example, `*_from_statistics`
turns the sum of rows into the score. METRICS of scores.py names both, and the tasks that record it.
Shares, correlations and similarities are in percent, as papers print them.
"""
