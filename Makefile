# make quick   the PPO-vs-GRPO table, small: a first result within minutes
# make run     the PPO-vs-GRPO table, in full
# make test    every test;  make test-all: the slow ones too
# make lab     JupyterLab on the notebooks
# make site    the course as HTML pages that need no network, in build/site
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# One thread per process: two are slower on a busy machine, and stored outputs stay comparable.
export OMP_NUM_THREADS ?= 1

EXTRAS := $(VENV)/.extras

SITE_VENV := .venv-site
SITE := build/site/_build/html

.PHONY: setup run quick test test-all lint lab site

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

# In an environment of its own: nothing of the package is imported, and the notebooks stay as they are stored.
$(SITE_VENV)/.ready: notebooks/site/requirements.txt
	test -d $(SITE_VENV) || $(PYTHON) -m venv $(SITE_VENV)
	$(SITE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	touch $@

site: $(SITE_VENV)/.ready
	rm -rf build/site
	$(SITE_VENV)/bin/jupyter-book build . --quiet --warningiserror --keep-going --path-output build/site \
		--config notebooks/site/_config.yml --toc notebooks/site/_toc.yml
	cp $(SITE_VENV)/lib/python3*/site-packages/sphinx-mathjax-offline/static/mathjax/tex-svg-full.js $(SITE)/_static
	$(SITE_VENV)/bin/python -m grpo_from_scratch.course.site $(SITE)
