# What a contributor types. `make help` lists it; each target sets up what it needs first.

PYTHON ?= python3
JOBS ?= $(shell nproc)
FUZZ_SECONDS ?= 20
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# cmake, ninja, ruff … of the project's own environment first.
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)

cpp_files = git ls-files -co --exclude-standard -- '*.h' '*.cc' '*.cu'

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

## Set-up: stamps make the second run a matter of milliseconds.

.PHONY: setup
setup: .venv/.project-stamp ## system packages, .venv, the project in it

.venv/.system-stamp: tools/system-packages.txt tools/install_system_packages.py
	$(PYTHON) tools/install_system_packages.py
	mkdir -p .venv && touch $@

.venv/.venv-stamp: .venv/.system-stamp tools/make_venv.py
	$(PYTHON) tools/make_venv.py .venv
	touch $@

# Build requirements go into the environment itself: an isolated build would configure build/release with programs of a
# folder that pip removes afterwards.
.venv/.tools-stamp: .venv/.venv-stamp
	.venv/bin/python -m pip install -q "setuptools>=68" wheel "pybind11>=2.13" "cmake>=3.24" ninja "grpcio-tools>=1.63"
	touch $@

.venv/.project-stamp: .venv/.tools-stamp pyproject.toml setup.py tools/generate_proto.py $(wildcard proto/smon_rt/v1/*.proto)
	@echo "set-up: installing Python packages, compiling the C++ parts: some minutes (four on two free cores)"
	.venv/bin/python -m pip install -q --no-build-isolation -e ".[test]"
	touch $@

.PHONY: build
build: setup ## release build, Python modules in place
	@test -f build/release/build.ninja || cmake --preset release
	@cmake --build --preset release

.PHONY: modules
modules: setup # what users run, without tests and benchmarks
	@test -f build/release/build.ninja || cmake --preset release
	@cmake --build --preset release --target _analysis _runtime smon_rt smon_contract smon-agent

.PHONY: demo
demo: modules ## train a small pipelined model with one slow worker, 4 processes; the verdict must name it
	@python examples/demo.py $(CURDIR)/build/demo

.PHONY: test
test: build ## everything a contributor needs: C++ and Python tests
	ctest --preset release
	pytest

.PHONY: check
check: setup ## format, layers, ruff, mypy
	$(cpp_files) | xargs -r clang-format --dry-run -Werror
	python tools/check_layers.py
	ruff check
	ruff format --check
	mypy

.PHONY: format
format: setup ## rewrite C++ and Python in the project's format
	$(cpp_files) | xargs -r clang-format -i
	ruff check --fix-only
	ruff format

.venv/.bench-stamp: .venv/.project-stamp
	.venv/bin/python -m pip install -q --no-build-isolation -e ".[bench]"
	touch $@

.PHONY: bench
bench: build .venv/.bench-stamp ## measure, beside torch, NVTX and OpenTelemetry; writes docs/benchmarks.md
	python benchmarks/run.py

# Beside the project, in a folder of their own: what they need would replace packages of .venv. One that does not install
# here is left out, and the table says so.
.PHONY: peers
peers: build .venv/.bench-stamp ## what a step costs beside other tools; writes its part of docs/benchmarks.md
	@for peer in nvidia-resiliency-ext "traceml-ai msgspec nvidia-ml-py psutil"; do \
	  python -m pip install -q --upgrade --no-deps --target build/peers $$peer || echo "not installed: $$peer"; \
	done
	PYTHONPATH=build/peers python benchmarks/peers.py --write

.PHONY: accuracy
accuracy: modules ## grade the verdict on jobs with known truth; writes docs/accuracy.md (SEEDS_FROM=1: another set, printed)
	python benchmarks/accuracy.py --seeds-from $(or $(SEEDS_FROM),0)

.PHONY: model
model: setup ## search the checkpoint protocol's model; writes its golden traces and its part of docs/checkpoint.md
	python -m tests.model.export_traces --golden
	python -m tests.model.write_docs

.PHONY: nocuda
nocuda: setup ## build as without a CUDA toolkit
	cmake --preset nocuda
	cmake --build --preset nocuda

# Under ThreadSanitizer: format and analysis have no threads, and the oracle's libprotobuf is not built for it. Threads that
# are not joined at exit are meant: the exit handler of a job must not wait for them.
.PHONY: asan tsan
asan tsan: setup
	cmake --preset $@
	cmake --build --preset $@
	ctest --preset $@
asan: ## C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer
tsan: ## C++ tests of all that has threads under ThreadSanitizer

# Needs nothing of Python but cmake and ninja: .ci/run compiles them while it installs packages and runs other tests.
.PHONY: compile-sanitizers
compile-sanitizers: .venv/.tools-stamp # the builds of fuzz and tsan, without running anything
	for preset in fuzz tsan; do cmake --preset $$preset && cmake --build --preset $$preset || exit 1; done

.PHONY: fuzz
fuzz: setup ## each fuzzer for FUZZ_SECONDS (20); needs clang-19
	cmake --preset fuzz
	cmake --build --preset fuzz
	ctest --preset fuzz
	python tools/run_fuzzers.py --build build/fuzz --seconds $(FUZZ_SECONDS)

.PHONY: wheel
wheel: setup ## an isolated wheel: what its shared objects need, what importing it costs
	python tools/check_wheel.py

.PHONY: soak
soak: ## before a release: ten minutes a fuzzer, many examples a property, the slow tests, real jobs with faults
	$(MAKE) fuzz FUZZ_SECONDS=600
	$(MAKE) build tsan
	ctest --test-dir build/release -L slow --output-on-failure
	ctest --test-dir build/tsan -L slow --output-on-failure
	HYPOTHESIS_PROFILE=soak pytest
	python benchmarks/real_faults.py --runs 5

.PHONY: matrix
matrix: setup ## before a release: the other compilers and Pythons of this machine
	python tools/run_matrix.py

.PHONY: clean
clean: ## what was built; .venv stays
	rm -rf build dist python/*.egg-info python/smon_rt/*.so python/smon_rt/bin python/smon_rt/lib python/smon_rt/include python/smon_rt/_proto/*_pb2.py*
	rm -f .venv/.project-stamp
