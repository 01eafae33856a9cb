"""Time and memory of each variant beside dot product attention, in the same rounds.

plan     what is compared in which settings, and the rows that come of it
cases    the work of one variant in one setting; peers: models of others
measure  bench(Plan(...)) -> Result, round by round
page     bench.json, bench.csv and report.html with the plots
"""
