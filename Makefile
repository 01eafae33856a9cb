# Each target sets up what it needs: one venv, one pip call under constraints.txt,
# made again only when pyproject.toml or constraints.txt change.
#   make run      the main job            make check    ruff and mypy
#   make test     the tests               make floor    the model tests on the oldest transformers
#   make gpu      the GPU kernels, interpreted and compiled: triton, 286 MB; no GPU is needed
#   make hf-suite TRANSFORMERS=DIR  Hugging Face's own tests, from its sources (docs/hugging_face.md)
#   make torture  kills, damaged files and absurd recipes, for up to 20 minutes (docs/compare.md)
# PYTHON=python3.12 chooses the interpreter; PIP_ARGS="--index-url ..." reaches pip.

PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
FLOOR := .venv-floor
JOBS ?= 2

.PHONY: run test slow check format floor gpu torture hf-suite clean

run: $(VENV)/ready
	$(BIN)/synthesizer compare --quick --jobs $(JOBS)

test: $(VENV)/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

slow: $(VENV)/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow

check: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

floor: $(FLOOR)/ready
	OMP_NUM_THREADS=1 $(FLOOR)/bin/python -m pytest -n $(JOBS) tests/test_models.py tests/test_hugging_face.py tests/test_universal.py

gpu: $(VENV)/ready
	$(PYTHON) -m pip --python $(BIN)/python install -q $(PIP_ARGS) -c constraints.txt -e ".[gpu]"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) tests/test_triton.py

torture: $(VENV)/ready
	OMP_NUM_THREADS=1 PYTHONPATH=src:tests $(BIN)/python tools/torture.py --seconds 380

hf-suite: $(VENV)/ready
	$(PYTHON) -m pip --python $(BIN)/python install -q $(PIP_ARGS) parameterized
	OMP_NUM_THREADS=1 $(BIN)/python tools/hugging_face_suite.py $(TRANSFORMERS)

# The venv is made without pip and filled from outside, so Debian's python3 needs no python3-venv.
$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv --without-pip $(VENV)
	$(PYTHON) -m pip --python $(BIN)/python install -q $(PIP_ARGS) -c constraints.txt -e ".[dev]"
	touch $@

$(FLOOR)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv --without-pip $(FLOOR)
	grep -v -i -E "^(transformers|huggingface_hub|hf-xet|tokenizers|safetensors|typer)==" constraints.txt > $(FLOOR)/constraints.txt
	$(PYTHON) -m pip --python $(FLOOR)/bin/python install -q $(PIP_ARGS) -c $(FLOOR)/constraints.txt -e ".[dev]" "transformers==5.4.0"
	touch $@

clean:
	rm -rf $(VENV) $(FLOOR) .mypy_cache .ruff_cache .pytest_cache .hypothesis
