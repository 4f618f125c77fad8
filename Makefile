# `make` lists the targets. Everything runs in .venv, which is made on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

export PYSPARK_PYTHON := $(abspath $(BIN)/python)
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)

.DEFAULT_GOAL := help
.PHONY: help install demo test lint types bench paper format clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

install: $(STAMP) ## make .venv and install the package with everything the targets need

demo: $(STAMP) ## three streams joined before your eyes, in under a minute
	$(BIN)/python -m spark_mjoin.demo

lint: $(STAMP) ## ruff: style, imports, banned calls
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP) ## mypy, strict on the package
	$(BIN)/mypy

test: lint types ## lint, types and all tests: what CI runs
	$(BIN)/python -m pytest

bench: $(STAMP) ## compare with Spark's own joins and duckdb, on the same files
	$(BIN)/python -m benchmarks.bench

paper: $(STAMP) ## the papers' experiments in virtual time, with their conclusions checked
	$(BIN)/python -m benchmarks.paper

format: $(STAMP) ## let ruff format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove what was built, installed and measured
	rm -rf $(VENV) build dist out .pytest_cache .mypy_cache .ruff_cache .hypothesis
