"""One file per task: examples to text pairs, windows or labels, and its metrics.

build_task(recipe, tokenizer_dir=None) -> Task      reads, encodes and caches the data of a recipe
prompt(recipe, tokenizer, line) -> list[int]         a user's line as model input; reads no data
"""
