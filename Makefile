# Everything a person or CI runs. Needs Python 3.11 or newer and make; the rest is set up in .venv.
PYTHON ?= python3
PIP_ARGS ?=
DATA ?= .data
BENCH_ARGS ?=
PLOT_ARGS ?=
TEST_ARGS ?=
WORKERS ?= logical

BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test proof torture serve lint format bench plot clean

help: ## List the targets
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 14

$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt \
		--editable '.[service,encryption,client,transformers]' --group dev
	@touch $@

demo: $(READY) ## Start a service, prefill on server A, restore on server B, compare every byte
	$(BIN)/python -m examples.demo

test: $(READY) ## Run all tests (the thinned proof included), under ten minutes on two cores
	$(BIN)/python -m pytest -m 'not proof and not torture' -n $(WORKERS) --maxprocesses 4 --dist worksteal $(TEST_ARGS)

proof: $(READY) ## Run the whole matrix of the byte-exact proof (longer)
	$(BIN)/python -m pytest -m proof --timeout=3600 $(TEST_ARGS)

torture: $(READY) ## Run the long forms of what keeps the promises: crashes, damage, bad links, strangers
	$(BIN)/python -m pytest -m torture --timeout=7200 $(TEST_ARGS)

serve: $(READY) ## Run a service on loopback, open, with its data in ./.data
	$(BIN)/kvcairn serve --data $(DATA)

lint: $(READY) ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY) ## Let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY) ## Measure, beside limits and peers; needs Debian's redis-server and memcached; see CONTRIBUTING.md
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

plot: $(READY) ## Measure fetches over the length of a prefix, and draw docs/fetch-and-restore.svg from that
	$(BIN)/python -m benchmarks.plot $(PLOT_ARGS)

clean: ## Remove the environment and what tools left behind
	rm -rf .venv build dist .data .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
