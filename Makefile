# make quick   the PPO-vs-GRPO table, small: a first result within minutes
# make run     the PPO-vs-GRPO table, in full
# make test    every test;  make test-all: the slow ones too
# make lab     JupyterLab on the notebooks
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# One thread per process: two are slower on a busy machine, and stored outputs stay comparable.
export OMP_NUM_THREADS ?= 1

EXTRAS := $(VENV)/.extras

.PHONY: setup run quick test test-all lint lab

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11")'
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

# Only tests need them all, so a first run does not wait for them.
$(EXTRAS): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,extras]'
	touch $@

run: setup
	$(BIN)/grpo table

quick: setup
	$(BIN)/grpo table --quick

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

test: lint $(EXTRAS)
	$(BIN)/python -m pytest

test-all: lint $(EXTRAS)
	$(BIN)/python -m pytest -m 'not real'

lab: setup
	$(BIN)/jupyter lab --notebook-dir notebooks
