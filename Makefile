# The two that matter: `make demo` and `make test`.

SHELL := /bin/sh
CARGO ?= cargo
PYTHON ?= python3
STRATA := target/release/strata
VENV := python/.venv
LABELLED := $(or $(STRATA_DATA),../shared/data)/labelled
DEMO := target/demo

# Peers that tests and benchmarks compare with, as Debian packages.
PEERS := age bzip2 lz4 curl ethtool jq nfdump openssl tshark tcpdump libpcap-dev wireshark-common strace libibverbs-dev systemd \
    python3-cryptography xz-utils libdpdk-dev gcc pkg-config libunbound8 libxdp1 libcap-ng0
# What the page is built with, and the browser of its tests.
CHROMIUM = $(shell for one in $(STRATA_CHROMIUM) chromium chromium-browser; do command -v $$one && break; done)
PAGE_PEERS = $(strip $(if $(shell command -v npm),,nodejs npm) $(if $(CHROMIUM),,chromium))
LINTS := -D warnings

.PHONY: help build install uninstall deb wheel image recorder page sql demo test tests test-program test-rest rest checks others test-page test-p4 arch messages test-python verbs neon fmt lint check-docs site tools attack soak nvme fabric forged fuzz bench python lock model compare ablation unseen kept sets frontier links clean

help:
	@echo "make demo    build, record a real capture, show the result"
	@echo "make test    formatting, lints, documentation and every test"
	@echo "make test-page  the operator's page in a real browser (part of make test)"
	@echo "make test-p4  the switch programs of p4/ in DPDK's software switch (part of make test)"
	@echo "make messages  all messages of the programs in one table, for review"
	@echo "make arch    check the code against the structure in docs/ARCHITECTURE.md"
	@echo "make check-docs  the site of docs/ (target/site/html), its links, and the commands of README, tutorial, cookbook"
	@echo "make build   all programs: $(STRATA), and strata-telemetry, -stream, -vectors, -fleet, -models beside it"
	@echo "make install  programs, units, man pages, completions, as root: PREFIX=/usr/local, DESTDIR; make uninstall removes them"
	@echo "make deb     a Debian package of the same: target/deb"
	@echo "make wheel   a wheel of the same and of the Python package: target/wheel"
	@echo "make image   a container image of the programs, made without container tools: target/image"
	@echo "make recorder  only $(STRATA), which records and reads logs"
	@echo "make page    the operator's page, which strata serve contains: page/dist"
	@echo "make sql     the program of strata query: target/release/strata-sql (long to build)"
	@echo "make bench   figures against peers, in one run"
	@echo "make neon    tests of the data path on an emulated ARM machine"
	@echo "make attack  attack each role of the program for SECONDS seconds (60)"
	@echo "make soak    interfaces come and go while an agent captures, for SECONDS seconds (600); KILLS (1000) of streams"
	@echo "make nvme    COMMANDS commands (1030000) to QEMU's NVMe controller, each write and read verified"
	@echo "make fabric  what telemetry says of simulated networks, against the truth: SEED (1)"
	@echo "make forged  RECORDS forged records (1000000000) inside payloads of streams: none may be read"
	@echo "make fuzz    every fuzz target for SECONDS_EACH seconds (600)"
	@echo "make python  the Python package, for training and reading logs, into $(VENV)"
	@echo "make compare presets of models side by side, as a page"
	@echo "make ablation  what each group of features buys"
	@echo "make unseen  what models keep of attacks that they have not seen"
	@echo "make kept    what recordings with a budget of detail keep of them"
	@echo "make links   how sketches and presets do on links of 100, 200 and 400 Gb/s"
	@echo "make frontier  what trees of other kinds would be worth at the same price"
	@echo "make sets    what recordings keep of each labelled capture by itself"
	@echo "make model   train models/default.json again"

# `strata` runs the others, as commands of its own.
PACKAGES := -p strata $(addprefix -p strata-program-,telemetry stream vectors fleet models manual)

# `strata --version` says what it was built from.
build recorder image: export STRATA_COMMIT := $(shell git rev-parse --short=12 HEAD 2>/dev/null)
build: page
	$(CARGO) build --release --locked $(PACKAGES)

recorder: page
	$(CARGO) build --release --locked -p strata

# What `make build` has built: no build as root. Another folder of programs: BUILT=target/debug. deploy/install.sh
# has the other variables.
PREFIX ?= /usr/local
BUILT ?= target/release
install: export BUILT := $(abspath $(BUILT))
deb wheel image: export BUILT := $(abspath $(BUILT))
install uninstall: export PREFIX := $(PREFIX)
install uninstall: export DESTDIR := $(DESTDIR)
install uninstall:
	@sh deploy/install.sh $@

deb:
	@sh deploy/deb.sh $(or $(DEB),target/deb)

wheel: python
	@PYTHON=$(abspath $(VENV))/bin/python sh deploy/wheel.sh $(or $(WHEEL),target/wheel)

# Of the programs in PROGRAMS, by default of all that were built. Its time is that of the commit.
image: export SOURCE_DATE_EPOCH := $(or $(SOURCE_DATE_EPOCH),$(shell git log -1 --format=%ct 2>/dev/null))
image: export PROGRAMS := $(PROGRAMS)
image: export COMPRESSION := $(COMPRESSION)
image:
	@$(PYTHON) deploy/image.py $(or $(IMAGE),target/image)

# The operator's page, built before the program that contains it; the program works without.
PAGE := page/dist/index.html
PAGE_PACKAGES := page/node_modules/.package-lock.json
page:
	@if ! command -v npm >/dev/null; then \
	    echo "no npm: strata serve will have its API but no page; on Debian: apt-get install nodejs npm"; \
	else $(MAKE) --no-print-directory $(PAGE) || \
	    echo "the page could not be built (see above): strata serve will have the page of page/dist, or none"; fi

$(PAGE_PACKAGES): page/package.json page/package-lock.json
	cd page && npm ci --ignore-scripts --silent
	@touch $@

$(PAGE): $(PAGE_PACKAGES) page/build.mjs crates/run/serve/openapi.yaml $(shell find page/src -type f ! -name schema.d.ts)
	cd page && npm run --silent build
	@touch crates/run/serve/build.rs # which cannot watch a folder that was missing

# The page in a real browser, with the program as it was built last. In CI nothing of it may be missing.
# No make within it: `make -n` would run that.
define PAGE_TESTS
@if [ -z "$(PAGE_PEERS)" ]; then \
    cd page && npm run --silent check && STRATA_CHROMIUM=$(CHROMIUM) npm run --silent test; \
elif [ -n "$$CI" ]; then echo "the tests of the page cannot run without $(PAGE_PEERS)"; exit 1; \
else echo "not run, without $(PAGE_PEERS): the tests of the page"; fi
endef

test-page: tools page
	$(CARGO) build --locked --quiet $(PACKAGES)
	$(PAGE_TESTS)

# DataFusion takes longer to build than all the rest, so the program is not among PACKAGES.
sql:
	$(CARGO) build --profile sql --locked -p strata-sql
	@mkdir -p target/release && cp target/sql/strata-sql target/release/

demo: recorder
	@sh demo/run.sh $(STRATA) $(DEMO)

# First everything is built and checked: documents run the programs, and builds that write much would delay tests. Then
# the tests of the program drive processes, interfaces and disks, and often wait: in the time that they leave unused, the
# other tests run, without delaying them.
test:
	@$(MAKE) --no-print-directory tools page fmt
	@$(MAKE) --no-print-directory --jobs=3 --output-sync=recurse checks python
	@$(MAKE) --no-print-directory --jobs=3 --output-sync=recurse test-program rest others

checks:
	@for one in tests lint site; do $(MAKE) --no-print-directory $$one || exit; done

TESTS := $(CARGO) test --workspace --locked --quiet
tests: verbs
	$(TESTS) $(VERBS) --lib --bins --tests --no-run

# The tests of one part, `program` or `rest`.
PART = --config "target.'cfg(unix)'.runner = ['sh', '$(abspath crates/tests/testkit/part.sh)', '$(1)']"
test-program:
	$(TESTS) $(VERBS) --lib --bins --tests $(call PART,program)
	$(PAGE_TESTS)

test-rest:
	$(TESTS) $(VERBS) --lib --bins --tests $(call PART,rest)
	$(TESTS) $(VERBS) --doc

IDLE := $(shell ! command -v chrt >/dev/null || echo chrt --idle 0)
rest:
	@$(IDLE) $(MAKE) --no-print-directory test-rest

others:
	@$(IDLE) $(MAKE) --no-print-directory test-python

# Also part of `make test`, with all tests of the workspace: docs/p4.md.
test-p4: tools
	$(CARGO) test --locked --quiet -p strata-program-models --bin strata-models p4
	$(CARGO) test --locked --quiet -p strata-program-models --test it p4
	$(CARGO) test --locked --quiet -p strata-dta -p strata-gpv -p strata-stream --test it switch

# Also part of `make test`, with all tests of the workspace.
arch:
	$(CARGO) test --locked --quiet -p strata-testkit --test arch

messages:
	@$(CARGO) run --locked --quiet -p strata-testkit --example messages

# With RDMA NICs, where libibverbs-dev is.
VERBS = $(shell [ ! -e /usr/include/infiniband/verbs.h ] || \
    echo --features strata/verbs,strata-relay/verbs,strata-stream/verbs)

# What the guests of the tests `rxe` and `nvme` run. Built as part of the workspace: crates of others then have the same
# features as in all tests, and are built once. Other examples are for benches: to lint them is enough.
verbs: tools
	$(CARGO) build --workspace --locked --quiet $(VERBS) --example verbs-relay --example nvme-guest

fmt:
	$(CARGO) fmt --all --check
	cd fuzz && $(CARGO) fmt --check

# Checking DataFusion for its sake takes two minutes; it is compiled with all tests.
NOT_SQL := --exclude strata-sql

# Fuzz targets are looked at too, so that they do not fall behind what they call. Nothing is linked, so libFuzzer is not
# built; with the profiles of the workspace, most has been checked already.
lint: tools
	$(CARGO) clippy --workspace $(NOT_SQL) --all-targets --locked --quiet $(VERBS) -- $(LINTS)
	cd fuzz && CUSTOM_LIBFUZZER_PATH=/none/libFuzzer.a \
	    $(CARGO) check --bins --locked --quiet --target-dir ../target --config ../Cargo.toml

# The site of docs/, its links, and the commands of README, tutorial and cookbook, which `make test` runs with all tests.
check-docs: site tools python
	$(CARGO) build --locked --quiet $(PACKAGES)
	$(CARGO) test --locked --quiet -p strata --test it documents -- --nocapture

# mdBook is a library here, in a workspace of its own: cheaper to build than the program, and locked.
site:
	RUSTDOCFLAGS="$(LINTS)" $(CARGO) doc --workspace $(NOT_SQL) --no-deps --locked --quiet $(VERBS)
	cd book && $(CARGO) fmt --check && $(CARGO) test --locked --quiet --target-dir ../target
	cd book && $(CARGO) run --locked --quiet --target-dir ../target

# A real object store for the tests of the object tier, built where there is Go.
S3_SERVER := target/tools/versitygw

# The checker of metrics, of Debian's package, unpacked: installed, it would start a server.
PROMTOOL := target/tools/promtool

# Open vSwitch, unpacked for the same reason.
OPEN_VSWITCH := target/tools/openvswitch

# Installs the peers where that is possible, else says which are missing.
tools:
	@[ -x $(S3_SERVER) ] || ! command -v go >/dev/null || \
	    GOBIN=$(abspath $(dir $(S3_SERVER))) go install github.com/versity/versitygw/cmd/versitygw@v1.8.0 \
	    || echo "no versitygw: the tests with an object store will not run"
	@[ -x $(PROMTOOL) ] || command -v promtool >/dev/null || ! command -v apt-get >/dev/null || \
	    { mkdir -p $(dir $(PROMTOOL)) && cd $(dir $(PROMTOOL)) && \
	      { apt-get download -qq prometheus || { apt-get update -qq && apt-get download -qq prometheus; }; } && \
	      dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x --strip-components=3 ./usr/bin/promtool && \
	      rm prometheus_*.deb; } || echo "no promtool: the test of metrics will not run"
	@[ -d $(OPEN_VSWITCH) ] || command -v ovs-vswitchd >/dev/null || ! command -v apt-get >/dev/null || \
	    { mkdir -p $(OPEN_VSWITCH) && cd $(OPEN_VSWITCH) && \
	      { apt-get download -qq openvswitch-switch openvswitch-common || \
	        { apt-get update -qq && apt-get download -qq openvswitch-switch openvswitch-common; }; } && \
	      for package in *.deb; do dpkg-deb -x $$package . && rm $$package; done; } || \
	    { rm -rf $(OPEN_VSWITCH); echo "no Open vSwitch: the tests of its ports will not run"; }
	@[ -z "$(PAGE_PEERS)" ] || if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(PAGE_PEERS) >/dev/null; \
	else echo "missing for the page and its tests; on Debian: apt-get install $(PAGE_PEERS)"; fi
	@missing=; \
	for tool in age bzip2 curl ethtool gcc jq lz4 nfpcapd openssl pkg-config tshark tcpdump capinfos strace systemd-analyze xz; do command -v $$tool >/dev/null || missing="$$missing $$tool"; done; \
	[ -e /usr/include/pcap/pcap.h ] || missing="$$missing libpcap-dev"; \
	python3 -c 'import cryptography' 2>/dev/null || missing="$$missing python3-cryptography"; \
	[ -e /usr/include/infiniband/verbs.h ] || missing="$$missing libibverbs-dev"; \
	pkg-config --exists libdpdk 2>/dev/null || missing="$$missing libdpdk-dev"; \
	[ -z "$$missing" ] && exit 0; \
	echo "missing for the tests:$$missing"; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $(PEERS) >/dev/null; \
	else \
	    echo "install them, on Debian with: apt-get install $(PEERS)"; exit 1; \
	fi

# Peers of benchmarks, where the system has them; QUICK=1 and TOPICS="offline live" go on.
BENCH_PEERS := nfdump softflowd netsniff-ng ethtool procps valgrind
BENCH_VENV := bench/.venv

$(BENCH_VENV): bench/requirements.txt
	$(PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_VENV)/bin/pip install --quiet --requirement bench/requirements.txt
	@touch $(BENCH_VENV)

bench: build tools $(BENCH_VENV)
	@[ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null || for peer in $(BENCH_PEERS); do \
	    dpkg -s $$peer >/dev/null 2>&1 || DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $$peer >/dev/null || true; \
	done
	$(BENCH_VENV)/bin/python bench/run.py --strata $(STRATA) $(if $(QUICK),--quick) $(TOPICS)
ifndef TOPICS
	$(CARGO) run --release --locked --quiet -p strata-rules --example rules_speed > bench/results/rules.md
	$(CARGO) run --release --locked --quiet -p strata-rdma --example encapsulation > bench/results/encapsulation.md
endif

# `make test` has its short form. What each attack does and which bound it found broken is said.
attack: tools
	$(CARGO) build --locked --quiet $(PACKAGES)
	STRATA_ATTACK_SECONDS=$(or $(SECONDS),60) \
	    $(CARGO) test --locked --quiet -p strata --test attack -- --nocapture

# `make test` has half a minute of it.
soak:
	$(CARGO) build --locked --quiet $(PACKAGES)
	STRATA_CHURN=$(or $(SECONDS),600) $(CARGO) test --locked --quiet -p strata --test it agents::churn -- --nocapture
	STRATA_KILLS=$(or $(KILLS),1000) $(CARGO) test --locked --quiet -p strata --test it streams::killed -- --nocapture
	SEEDS=$(or $(KILLS),1000) $(CARGO) test --locked --quiet -p strata-stream-run --test stream_producers

# `make test` has a thousandth of it. Some minutes.
nvme: verbs
	STRATA_NVME=$(or $(COMMANDS),1030000) $(CARGO) test --locked --quiet -p strata-stream --test controller -- --nocapture

fabric:
	$(CARGO) build --release --locked --quiet $(PACKAGES)
	$(PYTHON) crates/programs/strata/tests/it/telemetry/fabric.py $(STRATA) target/fabric $(or $(SEED),1)

forged:
	$(CARGO) run --release --locked --quiet -p strata-stream --example stream_recall -- forged $(or $(RECORDS),1000000000)

fuzz:
	fuzz/run.sh

# The package `strata` and what it needs, in the versions of the lock.
python: $(VENV)/installed

$(VENV)/installed: python/requirements.lock python/pyproject.toml
	$(PYTHON) -m venv --clear $(VENV)
	$(VENV)/bin/pip install --quiet --require-hashes --requirement python/requirements.lock
	$(VENV)/bin/pip install --quiet --no-deps --no-build-isolation --editable python
	@touch $@

# Takes the newest versions that pyproject.toml allows; needs `uv`.
lock:
	cd python && uv pip compile pyproject.toml --group dev --extra lake --upgrade --universal \
	    --python-version 3.11 --generate-hashes --no-header --quiet -o requirements.lock

test-python: python
	cd python && .venv/bin/ruff check --quiet . ../bench/research && .venv/bin/ruff format --check --quiet . ../bench/research
	cd python && PYTHONPATH=../bench .venv/bin/pytest --quiet tests ../bench/research/tests

model: build python
	STRATA_PROGRAM=$(abspath $(STRATA)) $(VENV)/bin/python -m strata default $(LABELLED)/mix-train -o models/default.json
	$(STRATA) eval -m models/default.json -r $(LABELLED)/mix-test/trace.pcap \
	    --labels $(LABELLED)/mix-test/labels.csv --report target/default-model.html

# Presets of models on every labelled capture; figures of bench/results/presets.figures.json.
compare: build python
	$(STRATA) compare $(LABELLED) --report bench/results/presets.html

# What models are worth on labelled captures, which train and record as users do.
RESEARCH := STRATA_PROGRAM=$(abspath $(STRATA)) PYTHONPATH=bench $(VENV)/bin/python -m research

# What each group of features buys: bench/results/features.md.
ablation: build python
	$(RESEARCH) ablate $(LABELLED)/mix-train -o bench/results/features

# What models spend a budget of detail on: bench/results/unseen.md.
unseen: build python
	$(RESEARCH) unseen $(LABELLED) \
	    --shipped models/default.json -o bench/results/unseen

# The same attacks, recorded with a budget of detail: bench/results/kept.md.
kept: build python
	$(RESEARCH) kept $(LABELLED) \
	    -o bench/results/kept

# Trees of other kinds, at the same price: bench/results/frontier.md.
frontier: build python
	$(RESEARCH) frontier $(LABELLED) \
	    -o bench/results/frontier

# Contended buckets, in simulated time: bench/results/links.md.
links: build python
	$(RESEARCH) links $(LABELLED) -o bench/results/links

# Each labelled capture recorded by itself: bench/results/sets.md.
sets: build python
	$(RESEARCH) sets $(LABELLED) \
	    -o bench/results/sets

# The vector code of the data path and the forest with NEON, as user-mode emulation runs it.
NEON := aarch64-unknown-linux-gnu
NEON_TEST := CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64-static -L /usr/aarch64-linux-gnu" \
    $(CARGO) test --target $(NEON) --locked --quiet
neon:
	@for tool in qemu-aarch64-static aarch64-linux-gnu-gcc; do command -v $$tool >/dev/null || \
	    { echo "missing: $$tool; on Debian: apt-get install qemu-user-static gcc-aarch64-linux-gnu"; exit 1; }; done
	@echo "not run, since the emulator ignores limits on memory: crates/path/sketch/tests/refused.rs"
	$(NEON_TEST) -p strata-classify -p strata-sketch -p strata-wire -- --skip without_memory_it_stays
	$(NEON_TEST) -p strata-pipeline --test paths

clean:
	$(CARGO) clean
	rm -rf $(VENV) $(BENCH_VENV) fuzz/target page/dist page/node_modules
