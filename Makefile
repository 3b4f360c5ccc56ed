# fedimmune: everything that a developer or a first visitor does, by one word each.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# An index to take PyTorch from, for example a CPU build without gigabytes of CUDA:
#   make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
PIP := $(BIN)/python -m pip --disable-pip-version-check
TORCH := $(shell grep '^torch==' constraints.txt)

.DEFAULT_GOAL := help
.PHONY: help install demo flower-demo test fuzz lint format test-data test-browser test-flower test-install reproduce test-reproduce results-check bench bench-rules bench-busy bench-growth bench-memory bench-simulate bench-grid bench-flower picture docs test-docs clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 22

# One stamp per set of packages: a second call finds it newer than what it depends on.
$(VENV)/.core: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) "$(TORCH)"
	$(PIP) install --quiet -c constraints.txt -e ".[fast]"
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	$(PIP) install --quiet -c constraints.txt -e ".[dev]"
	@touch $@

$(VENV)/.docs: $(VENV)/.dev
	$(PIP) install --quiet -c constraints.txt -e ".[dev,docs]"
	@touch $@

$(VENV)/.flower: $(VENV)/.dev
	$(PIP) install --quiet -c constraints.txt -e ".[dev,flower]"
	@touch $@

install: $(VENV)/.dev ## build .venv with all extras except Flower

demo: $(VENV)/.core ## the whole story in minutes: rehearse, train, attack, compare
	$(BIN)/fedimmune demo

flower-demo: $(VENV)/.flower ## the same story run by Flower: ten nodes, FedAvg and the learned rule
	$(BIN)/python examples/flower/demo.py build/flower-demo

test: $(VENV)/.dev ## run the tests (minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile -m "not data and not browser and not flower and not docs and not reproduce"

fuzz: $(VENV)/.dev ## change files of every kind at random: each must be read or refused without a crash
	FEDIMMUNE_EXAMPLES=$${FEDIMMUNE_EXAMPLES:-3000} OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/fuzz

test-data: $(VENV)/.dev ## tests that need real data sets; FEDIMMUNE_DATA names their folder
	@test -n "$$FEDIMMUNE_DATA" || { echo "set FEDIMMUNE_DATA to the folder of data sets"; exit 1; }
	$(BIN)/python -m pytest -m data -v

test-browser: $(VENV)/.dev ## open reports in an installed Chromium (Debian: chromium, chromium-driver)
	$(BIN)/python -m pytest -m browser -v -rs

test-flower: $(VENV)/.flower ## tests of the Flower strategy and of Ray (installs both)
	$(BIN)/python -m pytest -m flower -v -rs tests/flower tests/test_sharding.py

test-install: ## install the wheel as users do, with the oldest and the newest versions (minutes)
	$(PYTHON) tests/install/check.py $(if $(TORCH_INDEX),--torch-index $(TORCH_INDEX))

test-docs: $(VENV)/.docs ## run the documentation's long pages and build its site (minutes)
	$(BIN)/python -m pytest -m docs -v tests/docs

reproduce: $(VENV)/.core ## the paper's tables and figures: make reproduce ARGS="mnist-backdoor --scale smoke"
	$(BIN)/python -m reproduction $(ARGS)

test-reproduce: $(VENV)/.dev ## every experiment of the paper at its smallest scale, and one that is killed
	$(BIN)/python -m pytest -m reproduce -v tests/reproduction

results-check: $(VENV)/.core ## make every published table anew from the published rows; a difference is an error
	$(BIN)/python -m reproduction.check

lint: $(VENV)/.dev ## ruff, mypy and the arrows between rooms
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo

format: $(VENV)/.dev ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: bench-rules bench-busy bench-growth bench-memory bench-simulate bench-grid ## all benchmarks

# ByzFL is a peer to compare with, not a dependency; its own dependencies are not needed.
bench-rules: $(VENV)/.core ## speed and memory of the rules; writes build/bench-rules.json
	@$(BIN)/python -c "import importlib.util as u, sys; sys.exit(not u.find_spec('byzfl'))" \
		|| $(PIP) install --quiet --no-deps byzfl==0.0.11 \
		|| echo "ByzFL is not available here: its column stays empty"
	$(BIN)/python -m benchmarks.rules

bench-busy: $(VENV)/.core ## the rules alone and beside two busy processes; writes build/bench-busy.json
	$(BIN)/python -m benchmarks.rules --busy

bench-growth: $(VENV)/.core ## time against clients and columns; writes build/bench-growth.json and draws it
	$(BIN)/python -m benchmarks.growth
	$(BIN)/python -m benchmarks.plots

bench-memory: $(VENV)/.core ## peak memory with 10,000 clients; writes build/bench-memory.json
	$(BIN)/python -m benchmarks.growth --memory

bench-simulate: $(VENV)/.core ## speed of simulated training; writes build/bench-simulate.json
	$(BIN)/python -m benchmarks.simulate

bench-grid: $(VENV)/.core ## a grid of runs against the same runs one by one; writes build/bench-grid.json
	$(BIN)/python -m benchmarks.grid

bench-flower: $(VENV)/.flower ## the strategy against Flower's own; writes build/bench-flower.json
	$(BIN)/python -m benchmarks.flower

picture: $(VENV)/.dev ## draw the documentation's pictures from the demo's runs
	$(BIN)/python docs/pictures.py

# Its theme advertises another generator at every build, unless this is set.
docs: export NO_MKDOCS_2_WARNING = 1
docs: $(VENV)/.docs ## build the documentation's site, build/site/index.html
	$(BIN)/python -m mkdocs build --strict

clean: ## remove .venv and build
	rm -rf $(VENV) build
