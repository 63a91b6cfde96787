# Backflow's commands. `make` alone lists them; everything lives in .venv and build/.
.PHONY: help setup demo test acceptance lint lock clean
BIN := .venv/bin

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make .venv ready: Java and Python checked, packages by requirements.lock, the testbed's jars
	@scripts/setup

demo: setup ## break a real Kafka 0.11 cluster and watch Backflow tell why a group went back
	@$(BIN)/backflow demo

test: lint ## lint, types and the suite: units, properties, integration with real brokers (about 20 minutes)
	@scripts/ensure "systemd-analyze (tests check the unit with it)" systemd systemd-analyze --version
	@$(BIN)/pytest -m "not acceptance"

acceptance: setup ## the long scenarios (may take an hour)
	@$(BIN)/pytest -m acceptance

lint: setup ## ruff (rules and format) and mypy
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

lock: setup ## renew requirements.lock from pyproject.toml; `make lock LOCK=--upgrade` takes newer versions too
	@CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras \
	    --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --extra dev \
	    --output-file requirements.lock $(LOCK) pyproject.toml

clean: ## remove what commands leave behind, .venv included
	@rm -rf .venv build .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
