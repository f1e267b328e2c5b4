# Concord. `make help` says what there is.

CARGO ?= cargo
CONCORD = target/release/concord
# What `make up` builds and starts: the commands of a rack, without the simulator and the benchmarks.
RACK = target/up/concord
# What `make up` passes on: make up ARGS="--replicas 5 --listen 127.0.0.1:7400"
ARGS ?=
# Tests at a time of `make unit`: those over real processes mostly wait.
UNIT_THREADS ?= 3
# Runs the simulator with mimalloc, where it is installed: it is a third quicker.
QUICK = --config "target.'cfg(unix)'.runner='scripts/with-mimalloc'"
# How long `make swarm` goes on.
MINUTES ?= 10
# What `make check` compares with.
BASE ?= HEAD
# What `make mutants` mutates, one after the other, and where it is installed.
MUTANTS ?= control client switch protocols
MUTANTS_VERSION = 27.1.0
CARGO_MUTANTS = target/tools/bin/cargo-mutants
# What `make docs` builds the site with.
MDBOOK_VERSION = 0.5.2
MDBOOK = target/tools/bin/mdbook
# How many seeds of each protocol `make guards` fuzzes groups with bags of packets for.
BAG_SEEDS ?= 2500
# Inputs of each of the two tests of `make fuzz-log`.
LOG_INPUTS ?= 10000000
# Power cuts of each of the three kinds in `make power`.
POWER_CUTS ?= 20
# Inputs of each format of `make fuzz-falcon`.
FALCON_INPUTS ?= 20000000
# Files of each kind of `make fuzz-net`.
NET_INPUTS ?= 10000000
# Scripts of `make fuzz-scripts`: in the engine alone, and at racks, where each takes longer.
SCRIPTS ?= 10000
RACK_SCRIPTS ?= 10000

.PHONY: help up build test check lint unit guards mutants swarm fuzz-log fuzz-falcon fuzz-net fuzz-scripts replies rack-program power torture redis-suite redis-py apps bench reproduce test-packages docs clean

help: ## show this
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

up: ## build target/up/concord, and start a rack on this machine (ARGS="..." for its flags; Ctrl-C stops it)
	@test -x $(RACK) || echo "building $(RACK): some minutes, the first time" >&2
	@$(CARGO) build --profile up --locked --no-default-features --bin concord
	@exec $(RACK) up $(ARGS)

build: ## build target/release/concord, with all commands (simulator, benchmarks, figures) and link-time optimization
	$(CARGO) build --release --locked --bin concord

test: test-packages lint unit guards ## everything a commit needs; installs the Debian packages it takes

check: ## formatting, clippy and unit tests of the crates that you changed since the last commit (BASE=main); some minutes
	@BASE=$(BASE) scripts/check

lint: ## formatting, clippy and rustdoc, warnings being errors
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) clippy -p concord --no-default-features --bin concord --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked

unit: ## unit tests, vectors, and the tests over real processes
	RUST_TEST_THREADS=$(UNIT_THREADS) $(CARGO) test --workspace --exclude concord-sim --locked

guards: ## the simulator: seeds, every state of small racks, each removed guard is caught
	CONCORD_BAG_SEEDS=$(BAG_SEEDS) $(CARGO) test --profile guards --locked $(QUICK) -p concord-sim --features mutants -- --nocapture
	$(CARGO) test --profile guards --locked -p concord-switch -p concord-protocols -p concord-scheduler -p concord-memory -p concord-transport -p concord-client --features mutants

mutants: $(CARGO_MUTANTS) ## mutants of each crate, judged by its own tests (MUTANTS="control"); an hour or two
	@for crate in $(MUTANTS); do scripts/mutants $$crate || exit 1; done

$(CARGO_MUTANTS):
	$(CARGO) install --locked --root target/tools --version $(MUTANTS_VERSION) cargo-mutants

swarm: build ## fresh seeds of the simulator for ten minutes (MINUTES=60 for longer)
	scripts/with-mimalloc $(CONCORD) sim --minutes $(MINUTES)

fuzz-log: ## 20 million inputs for the log's recovery (LOG_INPUTS); some minutes
	CONCORD_LOG_INPUTS=$(LOG_INPUTS) $(CARGO) test --release --locked -p concord-log --test any_files -- --nocapture

fuzz-falcon: ## 20 million inputs for each of Falcon's formats, at the switch, an owner and a worker, and of journals (FALCON_INPUTS); some minutes
	CONCORD_FALCON_INPUTS=$(FALCON_INPUTS) $(CARGO) test --release --locked -p concord-switch --test falcon_any -- --nocapture
	CONCORD_FALCON_INPUTS=$(FALCON_INPUTS) $(CARGO) test --release --locked -p concord-scheduler --test any -- --nocapture

fuzz-net: ## 20 million files for the readers of `concord net` (NET_INPUTS); some minutes
	CONCORD_NET_INPUTS=$(NET_INPUTS) $(CARGO) test --release --locked -p concord-sim --lib any_text -- --nocapture

fuzz-scripts: rack-program ## 10,000 scripts at random (SCRIPTS) in the memory engine, RACK_SCRIPTS at racks of both engines: the longest iterations; an hour
	CONCORD_SCRIPTS=$(SCRIPTS) $(CARGO) test --release --locked -p concord-lua --test fuzz -- --nocapture
	mkdir -p results/fuzz
	CONCORD_SCRIPTS=$(RACK_SCRIPTS) CONCORD_PROGRAM=$(CURDIR)/$(RACK) CONCORD_RESULTS=$(CURDIR)/results/fuzz \
	$(CARGO) test --locked -p concord --test racks -- loops:: --include-ignored --nocapture --test-threads=1

replies: rack-program ## writes with replies of 1 to 63 MiB beside GET, three protocols with both engines; ten minutes; results/replies/
	mkdir -p results/replies
	CONCORD_PROGRAM=$(CURDIR)/$(RACK) CONCORD_RESULTS=$(CURDIR)/results/replies \
	$(CARGO) test --locked -p concord --test racks -- replies:: --include-ignored --nocapture --test-threads=1

rack-program:
	@$(CARGO) build --profile up --locked --no-default-features --bin concord

power: ## 20 power cuts of each kind, of each protocol with both engines (POWER_CUTS); a quarter of an hour; results/durability/
	mkdir -p results/durability
	CONCORD_POWER_CUTS=$(POWER_CUTS) $(CARGO) test --locked -p concord --test racks -- durable::t7_ --include-ignored --nocapture --test-threads=4 \
	  2>&1 | scripts/power-report > results/durability/power.md

torture: ## the long histories over real processes; reports go to results/torture/
	mkdir -p results/torture
	CONCORD_TORTURE_OPS=200000 CONCORD_RESULTS=$(CURDIR)/results/torture \
	CONCORD_COMMIT=$$(git rev-parse --short HEAD) \
	$(CARGO) test --release --locked -p concord --test racks -- histories:: transactions:: --nocapture --test-threads=1

redis-suite: build ## Redis' own tests against redis-server and a rack with each engine; needs tclsh; results/redis-suite/
	scripts/redis-suite

redis-py: build ## redis-py's own tests against redis-server and a rack with each engine; results/redis-py/
	scripts/redis-py

apps: build ## applications from PyPI and npm against redis-server and a rack with each engine; results/apps/
	scripts/apps

bench: build ## the figures: tables, CSV and SVG under results/bench/
	$(CONCORD) bench --all --out results

reproduce: build ## the papers' figures, from the simulator: results/harmonia/, flair/, falcon/, concordia/
	$(CONCORD) reproduce harmonia
	$(CONCORD) reproduce flair
	$(CONCORD) reproduce falcon
	$(CONCORD) reproduce concordia

docs: $(MDBOOK) ## the documentation as a site: target/site/html/index.html
	@MDBOOK=$(CURDIR)/$(MDBOOK) scripts/docs

$(MDBOOK):
	$(CARGO) install --locked --root target/tools --version $(MDBOOK_VERSION) --no-default-features --features search mdbook

test-packages:
	@scripts/install-test-packages

clean: ## remove what was built, and the run directory
	$(CARGO) clean
	rm -rf run
