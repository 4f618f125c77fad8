# `make` lists the targets. Everything runs in .venv, which is made on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
OLDEST := .venv-4.2
REFUSED := .venv-4.1

export PYSPARK_PYTHON := $(abspath $(BIN)/python)
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)
# Tests start hundreds of Python processes: without files of compiled code each would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install jar demo archive test fuzz test-matrix lint types bench paper format clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

# Not compiled: what is used is compiled when it is used.
$(STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile --editable '.[dev]'
	@touch $@

install: $(STAMP) jar ## make .venv and install the package with everything the targets need

jar: $(STAMP) ## compile the jar, if its sources have changed; without a JDK it says so and goes on
	@$(BIN)/python jvm-shim/build.py

demo: $(STAMP) jar ## three streams joined before your eyes, in under a minute
	$(BIN)/python -m spark_mjoin demo

lint: $(STAMP) ## ruff: style, imports, banned calls
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP) ## mypy, strict on the package
	$(BIN)/mypy

archive: $(STAMP) # the classes that Spark loads, for the JVMs of the tests
	$(BIN)/python -m tests.spark.archive

test: $(STAMP) jar ## lint, types and all tests: what CI runs
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target lint types archive
	$(BIN)/python -m pytest -n 2

fuzz: $(STAMP) ## the generated tests with many more cases each; SPARK_MJOIN_EXAMPLES says how many times as many
	SPARK_MJOIN_EXAMPLES=$${SPARK_MJOIN_EXAMPLES:-5} $(BIN)/python -m pytest -n 2 tests/oracle tests/driver tests/query tests/engine tests/kernel
	SPARK_MJOIN_EXAMPLES=$${SPARK_MJOIN_EXAMPLES:-5} $(BIN)/python -m pytest tests/jar -k streams_oracle

test-matrix: $(STAMP) jar ## the tests on Spark with each version that is claimed, and that others are refused
	@test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/pip install --quiet --disable-pip-version-check 'pyspark[connect]>=4.2,<4.3' --editable '.[dev]'
	for python in $(BIN)/python $(OLDEST)/bin/python; do \
		$$python -c 'import pyspark; print("Spark", pyspark.__version__)' && \
		$$python -m tests.spark.archive && \
		PYSPARK_PYTHON=$(abspath .)/$$python $$python -m pytest -n 2 tests/spark tests/jar || exit 1; \
	done
	@test -x $(REFUSED)/bin/python || $(PYTHON) -m venv $(REFUSED)
	$(REFUSED)/bin/pip install --quiet --disable-pip-version-check 'pyspark>=4.1,<4.2'
	PYSPARK_PYTHON=$(REFUSED)/bin/python $(REFUSED)/bin/python -m tests.jar.refused

bench: $(STAMP) jar ## compare with Spark's own joins and duckdb, on the same files
	$(BIN)/python -m benchmarks.bench --spark-one-batch

paper: $(STAMP) ## the papers' experiments in virtual time, with their conclusions checked
	$(BIN)/python -m benchmarks.paper

format: $(STAMP) ## let ruff format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove what was built, installed and measured
	rm -rf $(VENV) $(OLDEST) $(REFUSED) spark_mjoin/jars build dist out .pytest_cache .mypy_cache .ruff_cache .hypothesis
