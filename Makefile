# BENCH_ARGS= runs the benchmarks in full; BENCH_ARGS="--quick --json" and the like reach each of them.
BENCH_ARGS ?= --quick
python := .venv/bin/python

.PHONY: help setup demo test check lint types imports bench torture wheel clean

help:
	@echo "make setup     make .venv, or bring it up to date"
	@echo "make demo      kill a run, resume it, show what is there"
	@echo "make test      the tests"
	@echo "make check     lint, types, imports, then the tests"
	@echo "make bench     each benchmark, quickly; in full with BENCH_ARGS="
	@echo "make torture   kills and power cuts, for minutes"
	@echo "make wheel     build the wheel and try it in a clean environment"
	@echo "make clean     remove everything that can be made again"

setup:
	@scripts/setup

demo: setup
	$(python) -m rolltape.testing demo

test: setup
	$(python) -m pytest --durations=5

check: lint types imports test

lint: setup
	$(python) -m ruff check
	$(python) -m ruff format --check

types: setup
	$(python) -m mypy

imports: setup
	.venv/bin/lint-imports

bench: setup
	-@scripts/rivals
	@set -e; for benchmark in benchmarks/[!_]*.py; do echo "== $$benchmark"; $(python) "$$benchmark" $(BENCH_ARGS); done

torture: setup
	$(python) -m pytest -m torture

wheel: setup
	tests/wheel/run

clean:
	rm -rf .venv .work build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests -name __pycache__ -prune -exec rm -rf {} +
