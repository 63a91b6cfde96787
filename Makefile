# Backflow's commands. `make` alone lists them; everything lives in .venv and build/.
.PHONY: help setup setup-python demo test test-fast backtest faults acceptance coverage lint docs reference messages lock dist deb clean
BIN := .venv/bin
# Many unit tests wait, so that two for each core are faster than one.
WORKERS := $(shell echo $$((2 * $$(nproc))))

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## prepare .venv: check Python and Java, install requirements.lock, fetch the testbed's jars
	@scripts/setup

setup-python: ## prepare .venv without Java and the testbed's jars
	@scripts/setup --python-only

demo: setup ## break a real Kafka 0.11 cluster and watch Backflow find the root cause
	@$(BIN)/backflow demo

test: lint setup ## lint, types, unit and property tests, integration tests with real brokers (about half an hour)
	@scripts/ensure "systemd-analyze (tests check the unit with it)" systemd systemd-analyze --version
	@$(BIN)/pytest -m "not integration and not acceptance and not spark" --numprocesses $(WORKERS) --dist worksteal
	@$(BIN)/pytest -m "(integration or spark) and not acceptance" --numprocesses 2 --dist loadfile \
	    --no-loadscope-reorder

test-fast: lint ## lint, types, unit and property tests in parallel but for the longest; needs no Java (under 3 minutes)
	@$(BIN)/pytest -m "not integration and not acceptance and not spark and not slow" --numprocesses $(WORKERS) --dist worksteal

backtest: setup-python ## compare incidents with the truth of simulated clusters; SCENARIOS=1000, SEED= drawn and printed
	@$(BIN)/python -m testbed.model --scenarios $(or $(SCENARIOS),1000) $(if $(SEED),--first $(SEED))

faults: setup-python ## kill the agent at every fault point, ten times each, and print what was lost; TIMES=, ONLY=
	@$(BIN)/python -m testbed.kill_matrix --times $(or $(TIMES),10) --only "$(ONLY)"

acceptance: setup ## the long scenarios on real clusters (about three hours)
	@$(BIN)/pytest -m acceptance

coverage: setup-python ## branch coverage of the unit and property tests, report in build/coverage
	@$(BIN)/pytest -m "not integration and not acceptance" --numprocesses auto --dist worksteal \
	    --cov=agent --cov-report=html:build/coverage --cov-report=term:skip-covered
	@$(BIN)/coverage report --include="agent/engine/*,agent/rules/*,agent/storage/*,agent/notify/*" --fail-under=95

lint: setup-python ## ruff (rules and format), mypy, import contracts, spelling
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/codespell

docs: setup-python ## build the documentation site into build/docs
	@$(BIN)/mkdocs build --strict

reference: setup-python ## renew docs/reference, the man page and completions from the code
	@$(BIN)/python -m scripts.reference

messages: setup-python ## renew the golden messages in tests/messages
	@$(BIN)/python -m tests.messages.golden

lock: setup-python ## renew requirements.lock from pyproject.toml; `make lock LOCK=--upgrade` takes newer versions
	@CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras \
	    --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --extra dev --extra spark \
	    --output-file requirements.lock $(LOCK) pyproject.toml

dist: setup-python ## build the wheel and the source distribution into build/dist
	@$(BIN)/python -m build --no-isolation --outdir build/dist

deb: setup-python ## build the Debian package into build/dist; `make deb EXTRAS=spark` with PySpark
	@scripts/deb $(EXTRAS)

clean: ## remove what commands leave behind, including .venv
	@rm -rf .venv build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage *.egg-info
