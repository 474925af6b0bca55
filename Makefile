# `make demo` and `make test` need Python 3.11 or newer and make, nothing else.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready

.PHONY: help demo test chaos bench mutants lint types venv clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    quote, launch, lose a node, recover and terminate two nodes on this machine"
	@echo "make test    run all tests"
	@echo "make chaos   N=100 runs with killed workers, killed servers and faulty providers;"
	@echo "             SEED=7 begins there, BREAK=token|adoption|settle|terminate must fail,"
	@echo "             ARGS=--elastic is nodepools and deployments"
	@echo "make bench   measure against raw Temporal and write benchmarks/README.md"
	@echo "make mutants break rules of autoscaling, each of which a test must notice"
	@echo "make lint    check style and format"
	@echo "make types   check types"
	@echo "make venv    install Garrison and its tools into $(VENV); the others do it as needed"
	@echo "make clean   remove what these targets made"

demo: $(READY)
	@$(BIN)/python demo/story.py

# Tests wait for real processes more than they compute: four at a time fill two cores.
test: $(READY)
	@$(BIN)/pytest -q -n 4 --dist worksteal $(ARGS)

# Both take long, send traffic to loopback only, and stop by themselves.
N ?= 20
chaos: $(READY)
	@$(BIN)/python -m tests.chaos --runs $(N) $(if $(SEED),--seed $(SEED)) \
	  $(if $(BREAK),--break $(BREAK)) $(ARGS)

bench: $(READY)
	@$(BIN)/python -m benchmarks --write-readme $(ARGS)

# Rules of autoscaling broken on purpose, one at a time: each must fail the test that is named for it.
mutants: $(READY)
	@$(BIN)/python -m tests.mutants $(ARGS)

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(READY)
	@$(BIN)/mypy

venv: $(READY)

# The stamp is made last, so that an interrupted installation is done again.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "error: $(PYTHON) is not Python 3.11 or newer; name one: make PYTHON=python3.12 ..." >&2; \
	  exit 1; }
	@echo "installing into $(VENV) (once; about a minute) ..."
	@$(PYTHON) -m venv --clear $(VENV) || { \
	  echo "error: no virtual environment could be made; Debian has the rest in python3-venv" >&2; \
	  exit 1; }
	@$(BIN)/python -m pip install --quiet --no-input --disable-pip-version-check \
	  --constraint constraints.txt --editable '.[dev]' </dev/null || { \
	  echo "error: the packages of constraints.txt could not be installed; see pip above" >&2; \
	  exit 1; }
	@touch $@

clean:
	rm -rf $(VENV) .demo build dist garrison.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find garrison tests demo benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
