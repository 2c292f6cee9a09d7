# Lunar: what one types. `make` alone lists it.
SHELL := /bin/sh
CARGO ?= cargo
DEMO_SIZE ?= 1G
DEMO_PORT ?= 3260
FUZZ_SECONDS ?= 60
BENCH_ARGS ?=
# Run beside the tests that wait, at low priority; .ci/run does the last two as it builds.
STATIC ?= examples clippy doc
# Where cargo puts the programs that it builds with the tests.
BUILT = $(abspath $(or $(CARGO_TARGET_DIR),target)/debug)
# The program for tests with foreign peers.
PEERS_BIN = LUNAR_BIN=$(BUILT)/lunar
# Else two cargos that run at once look for a token pipe that make does not hand to them.
unexport MAKEFLAGS MFLAGS

.DEFAULT_GOAL := help
.PHONY: help run build test check lint format clippy deny unit release tests programs examples static java java-lab lab doc soak fuzz conformance conformance-tables pictures lab-kernel package bench bench-full bench-compare bench-java papers

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## Install what is missing, build, serve a 1 GiB demo disk on loopback
	@scripts/setup build
	@$(MAKE) --no-print-directory build
	@mkdir -p demo
	@scripts/run-release serve demo/demo.img --size $(DEMO_SIZE) --listen 127.0.0.1:$(DEMO_PORT)

test: ## Install what is missing, run every test: style, dependencies, unit, property, Java, lab, documentation
	@scripts/setup test
	@# Tests and programs are built once. Tests wait more than they compute: in their pauses runs
	@# what only computes, at low priority.
	@$(MAKE) --no-print-directory --jobs=4 format deny tests java
	@$(MAKE) --no-print-directory --jobs=3 programs java-lab static

check: ## The quick ones: style, unit and property tests (no peers)
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory unit

lint: format clippy ## rustfmt and clippy

format:
	$(CARGO) fmt --all --check

clippy:
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings

deny: ## Licences, duplicates and sources of dependencies (deny.toml), by cargo-deny; seconds
	@scripts/deny

unit: tests ## Unit and property tests, the rules of the house, the examples in documents
	$(BUILT)/xtask test --without-peers
	@$(MAKE) --no-print-directory examples

tests:
	$(CARGO) test --locked --workspace --no-run

programs: tests ## All test programs side by side, those with foreign peers too
	$(PEERS_BIN) $(BUILT)/xtask test

examples: ## The examples in documents
	$(CARGO) test --locked --workspace --doc

static:
	@nice -n 10 $(MAKE) --no-print-directory $(STATIC)

java: ## The Java modules: build, tests, documentation; any JDK from 21 on
	@scripts/java-test

java-lab: tests ## The Java initiator against our server, tgt and istgt; the chapter of docs/java.md; two minutes
	@$(PEERS_BIN) scripts/java-lab
	@$(PEERS_BIN) scripts/java-readme

build: ## The program alone: target/release/lunar
	@scripts/setup build
	$(CARGO) build --release --locked -p lunar-san

release: ## All artifacts of a release into dist/out: packages, static programs, images, Maven, checksums; some half an hour
	@scripts/setup release
	@scripts/release

lab: ## Foreign peers against our server, in an optimized build: libiscsi, QEMU, tgt, istgt
	$(CARGO) test --locked -p lunar-lab --test it

doc: ## The API documentation, without a warning
	@# For examples, of which there are none, cargo takes the features that tests need, as clippy does.
	@# Without them it would check tokio and what depends on it a second time.
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps --lib --bin lunar --bin lab --examples

package: ## Build the Debian package; prints where it is
	@scripts/setup package
	@scripts/package

soak: ## The long forms of the tests, and what was counted into docs/soak.md; about two hours
	@scripts/setup test
	@scripts/soak

fuzz: ## Each fuzz target for a minute (FUZZ_SECONDS=60); docs/fuzz.md is the log of longer runs
	@scripts/fuzz $(FUZZ_SECONDS)

conformance: ## Run the libiscsi suite and write CONFORMANCE.md
	@scripts/setup test
	$(CARGO) run --locked -p lunar-lab -- conformance
	$(CARGO) run --locked -p xtask -- pictures

conformance-tables: ## Write the parts of CONFORMANCE.md that come from the code alone
	$(CARGO) run --locked -p lunar-lab -- conformance-tables

pictures: ## Draw the pictures of README.md from the documents that they show
	$(CARGO) run --locked -p xtask -- pictures

lab-kernel: ## A Debian 6.1 kernel in a QEMU guest: the quick start, the package, a file system, multipath with a cut path, sg_persist, sg_xcopy; its target, LIO; hosts and storages of a switch
	@scripts/setup kernel
	$(CARGO) build --release --locked -p lunar-san
	lab/kernel/run

bench: ## The target against tgt and what is possible: the cells that goals need, pass or miss; some ten minutes
	@scripts/setup bench
	@mkdir -p target
	$(CARGO) run --release --locked -p lunar-lab -- scale --json target/bench-scale.json
	$(CARGO) run --release --locked -p lunar-lab -- target --goals-from target/bench-scale.json --directory target --json target/bench.json --html target/bench.html $(BENCH_ARGS)

bench-full: ## All cells; writes docs/performance.md and .json, docs/profiles, and target/bench.html; some 25 minutes and a build
	@scripts/setup bench
	@mkdir -p target
	$(CARGO) run --release --locked -p lunar-lab -- scale --json target/bench-scale.json
	$(CARGO) run --release --locked -p lunar-lab -- target --full --goals-from target/bench-scale.json --rounds 5 --directory target --json docs/performance.json --markdown docs/performance.md --profiles docs/profiles --html target/bench.html $(BENCH_ARGS)
	$(CARGO) run --locked -p xtask -- pictures
	@for picture in docs/profiles/*.svg; do grep -q "$$(basename "$$picture")" docs/performance.md || rm -f "$$picture"; done

bench-compare: ## Two builds in turns: make bench-compare REV=HEAD~1; some five minutes and a build
	@scripts/setup build
	@scripts/bench-compare "$(REV)" $(BENCH_ARGS)

bench-java: ## Our Java initiator against the published jSCSI and libiscsi, as the jSCSI paper measured; some ten minutes
	@scripts/setup bench
	@scripts/bench-java $(BENCH_ARGS)

papers: ## The measurements of three papers, repeated: target/papers/*.html; NFS and frame sizes need root
	@scripts/setup test
	@mkdir -p target/papers
	$(CARGO) run --release --locked -p lunar-lab -- papers multi-connection --html target/papers/multi-connection.html --json target/papers/multi-connection.json
	$(CARGO) run --release --locked -p lunar-lab -- papers jscsi --rounds 5 --html target/papers/jscsi.html --json target/papers/jscsi.json
	$(CARGO) run --release --locked -p lunar-lab -- papers storage-over-ip --directory target/papers --html target/papers/storage-over-ip.html --json target/papers/storage-over-ip.json
