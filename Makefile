# Concord. `make help` says what there is.

CARGO ?= cargo
CONCORD = target/release/concord
# What `make up` passes on: make up ARGS="--replicas 5 --listen 127.0.0.1:7400"
ARGS ?=

.PHONY: help up build test lint unit e2e bench test-packages clean

help: ## show this
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

up: build ## build, and start a rack on this machine (ARGS="..." for its flags; Ctrl-C stops it)
	@exec $(CONCORD) up $(ARGS)

build: ## build target/release/concord
	$(CARGO) build --release --locked --bin concord

test: test-packages lint unit e2e ## everything a commit needs; installs the Debian packages it takes

lint: ## formatting, clippy and rustdoc, warnings being errors
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked

unit: ## unit tests, vectors and the seeds of the simulator
	$(CARGO) test --workspace --locked

# Scripts under tests/e2e/ run against real processes, in the order of their names.
e2e: build ## the tests over real processes
	tests/run-e2e

bench: build ## the figures: table, CSV and SVG under results/
	$(CONCORD) bench --all --out results

test-packages:
	@scripts/install-test-packages

clean: ## remove what was built, and the run directory
	$(CARGO) clean
	rm -rf run
