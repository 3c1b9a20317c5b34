# The front door. `make` alone says what there is.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=

# $(call heading,text): what runs now, easy to find in a long log.
heading = @printf '\n== %s ==\n' '$(1)'

.PHONY: help setup demo test test-all lint types docs docs-serve pictures format pytest postgres bench dist lock clean

help: ## This list
	@awk 'BEGIN {FS = ":.*## "; print "Targets (pass options as ARGS=\"…\"):"} \
	  /^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make .venv with everything in the lock (done once; other targets do it too)

$(STAMP): requirements.lock requirements-build.lock pyproject.toml tools/make-venv
	@tools/make-venv $(VENV)
	@touch $@

demo: $(STAMP) ## A live shop in an embedded Postgres, replicated to Iceberg (ARGS="--seconds 10")
	@exec $(BIN)/walflow demo $(ARGS)

test: lint types docs pytest ## What a change is likely to break: lint, types, import borders, docs, quick tests

# What the variables mean: tests/pipeline/test_killing.py, tests/lake/test_random.py.
test-all: export WALFLOW_TEST_KILLS ?= 100
test-all: export WALFLOW_TEST_SEEDS ?= 5
test-all: lint types docs ## All of it: `make test` and the long tests
	@$(MAKE) pytest MARKED=

lint: $(STAMP) ## Ruff (rules and format) and the import borders
	$(call heading,ruff check)
	@$(BIN)/ruff check .
	$(call heading,ruff format --check)
	@$(BIN)/ruff format --check .
	$(call heading,import borders)
	@$(BIN)/lint-imports --no-cache --no-logo

types: $(STAMP) ## mypy, strict, tests included
	$(call heading,mypy --strict)
	@$(BIN)/mypy

docs: $(STAMP) ## Build the docs' site (build/site); a link that leads nowhere is an error
	$(call heading,docs)
	@$(BIN)/python -m tools.docs build

docs-serve: $(STAMP) ## Show the docs' site while you write
	@exec $(BIN)/python -m tools.docs serve

pictures: $(STAMP) ## Make the docs' pictures of the terminal anew
	@exec $(BIN)/python -m tools.docs.terminal_pictures

# The quick tests run in several processes at once, file by file (WORKERS=1 if one alone is wanted);
# those that ARGS choose in one, which starts sooner, the long ones among them too.
WORKERS ?= auto
MARKED ?= -m 'not long'
PARALLEL = --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder --durations 15 $(MARKED)
pytest: $(STAMP) postgres ## The quick tests alone (ARGS="tests/test_config.py -k secret": these)
	$(call heading,pytest)
	@$(BIN)/python -m pytest $(if $(strip $(ARGS)),$(ARGS),$(PARALLEL))

# Not a reason to fail: tests that want a version that is not here say so and are skipped.
postgres: $(STAMP) ## Fetch the Postgres versions for the tests that are not here (needs npm)
	$(call heading,Postgres versions)
	@$(BIN)/python tests/fetch_postgres.py

format: $(STAMP) ## Format, and fix what ruff can fix
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

bench: $(STAMP) ## Benchmarks (ARGS="capture --json", ARGS="copy")
	@exec $(BIN)/walflow bench $(ARGS)

dist: $(STAMP) ## The source distribution and the wheel, into dist/
	@PYTHON=$(BIN)/python tools/make-dist dist

# No index or machine name gets into the locks, so that pip and uv use whatever mirror you have.
LOCK_OPTIONS := --universal --python-version 3.11 --generate-hashes --quiet \
	--no-emit-index-url --no-emit-find-links
lock: $(STAMP) ## Renew the lock files from pyproject.toml (ARGS="--upgrade" or "--upgrade-package x")
	@export UV_CUSTOM_COMPILE_COMMAND='make lock' && \
	$(BIN)/uv pip compile $(LOCK_OPTIONS) $(ARGS) --all-extras --group build --group docs \
	  pyproject.toml -o requirements.lock && \
	$(BIN)/uv pip compile $(LOCK_OPTIONS) --group build -c requirements.lock \
	  -o requirements-build.lock && \
	if grep -nE '://|^-' requirements.lock requirements-build.lock; then \
	  echo 'error: the lines above tie the lock to a host or a folder' >&2; exit 1; fi

clean: ## Remove .venv, caches and build leftovers
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis \
	  spark-warehouse metastore_db derby.log
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
