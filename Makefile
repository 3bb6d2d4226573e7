# Everything that a developer or a first user runs; `make help` lists it.
# Needs python3 (3.11, 3.12 or 3.13) with the venv module, and make; all else goes into $(VENV).

VENV ?= .venv
BIN := $(VENV)/bin
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install -qq

# The first interpreter that the project supports; `make PYTHON=/path/to/python3.12 ...` takes another one.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1 && echo $$p && break; done)

# torch is installed before the project, because its plain requirement (torch>=2.5) would fetch the newest build, on Linux
# with several GB of CUDA. Python 3.11 gets the version that the project is tested with. Where your package index serves
# CPU builds under another name or address, say so: make demo TORCH="torch --index-url ADDRESS". An installed torch is kept.
TORCH ?= $(shell $(BIN)/python -c 'import sys; print("torch==2.13.0" if sys.version_info[:2] == (3, 11) else "torch")')

# Several sites on one machine: two training processes with two threads each on two cores are 6 to 10 times slower.
export OMP_NUM_THREADS = 1

# Tests and demonstrations start hundreds of processes: each would compile all modules anew. `make clean` removes what it leaves.
unexport PYTHONDONTWRITEBYTECODE

# Tests without real processes first; then those with them, four files side by side on two cores, for they wait most of the
# time (a third of it is processor time); last, one after the other, those that measure or need the machine for
# themselves (marked `alone`).
TESTS := $(BIN)/python -m pytest -q
IN_PROCESS := $(wildcard tests/unit tests/simulator tests/simulation tests/numerics tests/fuzz)
WITH_PROCESSES := $(wildcard tests/packaging tests/integration)

.DEFAULT_GOAL := help
.PHONY: help docs release demo demo-site docker-demo test test-long check house passes format bench attack soak seeds mutants mutants-random fuzz coverage clean distclean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.project  ## four hospitals train together while one joins, dies, leaves; then what they gain (3 minutes)
	@$(BIN)/chaosd demo

demo-site: $(VENV)/.project  ## a site of eight workers and its neighbour train while one is killed, one hangs, a stage is lost (2 minutes)
	@$(BIN)/python -m examples.site.demo

docker-demo: $(VENV)/.project  ## six sites in containers, one network per link (root; Docker; a minute)
	@$(BIN)/python docker/demo.py

docs: $(VENV)/.docs  ## the documentation site, without network: build/site/index.html
	@$(BIN)/python -m tests.tidy.doc_site && echo "open build/site/index.html"

test: $(VENV)/.check  ## the tests of what the software does, without the long ones (the house rules: make check)
	@$(TESTS) -n 2 -m "not mutants and not long" $(IN_PROCESS); first=$$?; \
		$(TESTS) -n 4 --dist loadfile --no-loadscope-reorder -m "not alone and not long" $(WITH_PROCESSES); second=$$?; \
		$(TESTS) -m "alone and not long" $(WITH_PROCESSES) && test $$first -eq 0 && exit $$second

test-long: $(VENV)/.check  ## the long ones: demonstrations, the quick start, two versions, a lost majority (8 minutes)
	@$(TESTS) -n 4 --dist loadfile --no-loadscope-reorder -m "long and not alone" $(IN_PROCESS) $(WITH_PROCESSES); first=$$?; \
		$(TESTS) -m "long and alone" $(WITH_PROCESSES) && exit $$first

check: $(VENV)/.check  ## lint, format, types, import contracts, spelling, house rules
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check . || { echo "not formatted: run 'make format'"; exit 1; }
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-logo --no-cache
	@$(BIN)/codespell
	@$(BIN)/python -m pytest -q tests/tidy

house: $(VENV)/.project  ## figures of the source: import circles, sizes, branches, names, who writes whose fields
	@$(BIN)/python -m tests.tidy.house

passes: $(VENV)/.project  ## files that a gradient and a newcomer's request pass, counted in real processes (half a minute); which ones: ARGS=--list
	@$(BIN)/python -m tests.tidy.passes $(ARGS)

format: $(VENV)/.check  ## format the code and sort the imports
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/ruff format --quiet .

bench: $(VENV)/.project  ## all benchmarks in their short form (about 10 minutes); one alone: python -m benchmarks NAME
	@$(BIN)/python -m benchmarks --all --short

# Seeds run compiled, which needs a C compiler; without one: make seeds COMPILED=
COMPILED := --compiled

attack: $(VENV)/.project  ## a hostile guest against sites that train: rounds a second with and without, memory (4 minutes)
	@$(BIN)/python -m benchmarks attack --short

soak: $(VENV)/.check  ## real processes under fire for 10 minutes, a site's workers for an hour, 50 power cuts, 5,000 rounds of the engine, 100,000 seeds (4 hours)
	@$(BIN)/python -m tests.soak
	@$(BIN)/python -m tests.soak.workers
	@CHAOS_POWER_CUTS=0:50 $(BIN)/python -m pytest -q tests/integration/test_power_cut.py
	@CHAOS_RANDOM_ROUNDS=0:1000 $(BIN)/python -m pytest -q tests/integration/test_bulk_engines_random.py
	@$(BIN)/python -m tests.simulator $(COMPILED) --seeds fresh:100000

SEEDS ?= 0:3000
OPERATORS ?= 0:300

seeds: $(VENV)/.check  ## 3,000 seeds of the simulator on all cores, and 300 in which operators act (5 minutes, the first time 7); fewer: make seeds SEEDS=0:500
	@$(BIN)/python -m tests.simulator $(COMPILED) --seeds $(SEEDS)
	@$(BIN)/python -m tests.simulator $(COMPILED) --seeds $(OPERATORS) --operators

mutants: $(VENV)/.project  ## deliberate faults in the protocols, and fixes that are taken back: each must be noticed
	@$(BIN)/python -m tests.simulation.mutants
	@$(TESTS) -n 2 -m mutants tests/simulation

mutants-random: $(VENV)/.project  ## 200 small faults drawn from a seed: do the tests notice? (hours)
	@$(BIN)/python -m tests.simulation.mutants.random_faults

fuzz: $(VENV)/.project  ## a minute of coverage-guided fuzzing for each reader of foreign bytes (17 minutes)
	@$(BIN)/python -m tests.fuzz --seconds 60

coverage: $(VENV)/.project  ## branches of the protocols that no test without sockets reaches
	@$(BIN)/python -m tests.coverage_of_protocols

release: $(VENV)/.release  ## sdist and wheel in dist/, tried in empty environments; bill of materials, licences (minutes)
	@$(BIN)/python -m tests.packaging.release

clean:  ## remove caches and build outputs
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage .lab
	@find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean  ## remove the virtual environment too
	@rm -rf $(VENV)

# Each stamp is written when its step is done, so that a second run skips it and a broken one repeats it.
$(VENV)/.made:
	@test -n "$(PYTHON)" || { echo "no Python 3.11, 3.12 or 3.13 found: install one, or name it with PYTHON=..."; exit 1; }
	@echo "making a virtual environment in $(VENV) ($$($(PYTHON) --version))"
	@$(PYTHON) -m venv $(VENV) || { echo "the venv module is missing (Debian, Ubuntu: apt-get install python3-venv)"; exit 1; }
	@touch $@

$(VENV)/.torch: $(VENV)/.made
	@$(BIN)/python -c 'import torch' >/dev/null 2>&1 || \
		{ echo "installing torch into $(VENV) (once; about a minute)"; $(PIP) $(TORCH); }
	@touch $@

$(VENV)/.project: pyproject.toml $(VENV)/.torch
	@echo "installing the project into $(VENV)"
	@$(PIP) -e '.[torch,planner,test]'
	@touch $@

$(VENV)/.docs: pyproject.toml $(VENV)/.project
	@echo "installing the builder of the documentation into $(VENV)"
	@$(PIP) -e '.[torch,planner,test,docs]'
	@touch $@

$(VENV)/.release: pyproject.toml $(VENV)/.project
	@echo "installing what makes a release into $(VENV)"
	@$(PIP) -e '.[torch,planner,test,release]'
	@touch $@

$(VENV)/.check: pyproject.toml $(VENV)/.project
	@echo "installing the checkers into $(VENV)"
	@$(PIP) -e '.[torch,planner,integrations,test,check]' 'hatchling>=1.25'
	@touch $@
