# Every habit is one command. GNU make 3.81 (macOS) is enough.
#   PYTHON=…            an interpreter of 3.11 or newer
#   TORCH_INDEX_URL=…   an index that has the build of torch you want
#   YES=1               `make demo` approves within the contract's bounds

SHELL = /bin/bash
export PYTHON TORCH_INDEX_URL YES

.PHONY: help setup demo test test-all lint docs bench faults clean

help:
	@echo "make demo      set up, then take examples/tiny-grpo through its whole life (YES=1: do not ask)"
	@echo "make test      set up, then every test but the slow ones; what is missing is skipped by name"
	@echo "make test-all  install what is missing (root or sudo), then every test"
	@echo "make lint      ruff, mypy, shellcheck"
	@echo "make docs      docs/reference/cli.md from the commands themselves"
	@echo "make bench     Charter beside its peers, into benchmarks/results.json"
	@echo "make faults    kill it everywhere and see what is left"
	@echo "make setup     only the two environments"
	@echo "make clean     environments and caches; .charter (ledger, results) stays"

setup:
	@setup/environment.sh controller
	@setup/environment.sh host

demo:
	@setup/demo.sh

test:
	@setup/test.sh -m "not slow"

test-all:
	@setup/system.sh
	@CHARTER_REQUIRE=1 setup/test.sh

lint:
	@setup/lint.sh

docs:
	@setup/environment.sh controller
	@.venv/bin/python -m cli.reference >docs/reference/cli.md.new
	@mv docs/reference/cli.md.new docs/reference/cli.md

bench: setup
	@.venv/bin/python -m benchmarks

faults:
	@setup/test.sh tests/e2e

clean:
	@if [ -x .venv/bin/charter ] && [ -d .charter ]; then .venv/bin/charter --home .charter down; fi
	rm -rf .venv .venv-host build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
