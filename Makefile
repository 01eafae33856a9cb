# Each target sets up what it needs: one venv, one pip call under constraints.txt,
# made again only when pyproject.toml or constraints.txt change.
#   make run      the main job            make check    ruff and mypy
#   make test     the tests               make floor    the model tests on the oldest transformers
#   make wheel    the archives of a release, and the wheel tried in a clean venv
#   make newest   the model tests on the newest torch and transformers that pip finds
#   make gpu      the GPU kernels, interpreted and compiled: triton, 286 MB; no GPU is needed
#   make hf-suite Hugging Face's own tests, from its source distribution (docs/hugging_face.md)
#   make docs     the site, in build/site/html; make gallery and make play add the slow pages to it
#   make torture  kills, damaged files and absurd recipes, for up to 20 minutes (docs/compare.md)
# PYTHON=python3.12 chooses the interpreter; PIP_ARGS="--index-url ..." reaches pip.

PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
FLOOR := .venv-floor
NEWEST := .venv-newest
RELEASE := .venv-release
MODEL_TESTS := tests/test_models.py tests/test_hugging_face.py tests/test_universal.py
# What `make newest` leaves to pip: torch, transformers and what they pin.
MOVING := torch|triton|transformers|accelerate|peft|huggingface_hub|hf-xet|tokenizers|safetensors|typer
JOBS ?= 2

.PHONY: run test slow check format docs gallery play wheel floor newest gpu torture hf-suite clean

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

wheel: $(RELEASE)/ready
	PIP_ARGS="$(PIP_ARGS)" $(RELEASE)/bin/python tools/wheel.py dist --python $(PYTHON) $(WHEEL_ARGS)

docs: $(VENV)/ready
	$(BIN)/python tools/site_pages.py

gallery: $(VENV)/ready
	$(BIN)/python tools/site_pages.py gallery

play: $(VENV)/ready
	$(BIN)/python tools/site_pages.py play

floor: $(FLOOR)/ready
	OMP_NUM_THREADS=1 $(FLOOR)/bin/python -m pytest -n $(JOBS) $(MODEL_TESTS)

newest: $(NEWEST)/ready
	OMP_NUM_THREADS=1 $(NEWEST)/bin/python -m pytest -n $(JOBS) $(MODEL_TESTS) tests/test_contract.py tests/test_readme.py

gpu: $(VENV)/ready
	$(PYTHON) -m pip --python $(BIN)/python install -q $(PIP_ARGS) -c constraints.txt -e ".[gpu]"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) tests/test_triton.py

torture: $(VENV)/ready
	OMP_NUM_THREADS=1 PYTHONPATH=src:tests $(BIN)/python tools/torture.py --seconds 380

# TRANSFORMERS=DIR takes a checkout instead; GENERATION=DIR takes tests/generation from another one.
hf-suite: $(VENV)/ready
	$(PYTHON) -m pip --python $(BIN)/python install -q $(PIP_ARGS) parameterized
	PIP="$(PYTHON) -m pip" OMP_NUM_THREADS=1 $(BIN)/python tools/hugging_face_suite.py \
	  $(if $(TRANSFORMERS),--sources $(TRANSFORMERS)) $(if $(GENERATION),--generation $(GENERATION))

# The venv is made without pip and filled from outside, so Debian's python3 needs no python3-venv.
$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv --without-pip $(VENV)
	$(PYTHON) -m pip --python $(BIN)/python install -q $(PIP_ARGS) -c constraints.txt -e ".[dev]"
	touch $@

$(RELEASE)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv --without-pip $(RELEASE)
	$(PYTHON) -m pip --python $(RELEASE)/bin/python install -q $(PIP_ARGS) -c constraints.txt build twine
	touch $@

$(NEWEST)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv --without-pip $(NEWEST)
	grep -v -i -E "^($(MOVING))==" constraints.txt > $(NEWEST)/constraints.txt
	$(PYTHON) -m pip --python $(NEWEST)/bin/python install -q $(PIP_ARGS) -c $(NEWEST)/constraints.txt -e ".[dev]"
	touch $@

$(FLOOR)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv --without-pip $(FLOOR)
	grep -v -i -E "^(transformers|huggingface_hub|hf-xet|tokenizers|safetensors|typer)==" constraints.txt > $(FLOOR)/constraints.txt
	$(PYTHON) -m pip --python $(FLOOR)/bin/python install -q $(PIP_ARGS) -c $(FLOOR)/constraints.txt -e ".[dev]" "transformers==5.4.0"
	touch $@

clean:
	rm -rf $(VENV) $(FLOOR) $(NEWEST) $(RELEASE) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
