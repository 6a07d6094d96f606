# Everything a newcomer needs:
#   make bench      set up .venv, run the quick study and the quick timing session, build all pages; git sees no change
#   make test       set up .venv, run the tests: four minutes on two cores
#   make test-full  all tests, long ones and those of Slurm, namespaces and Chromium (make test-system) included: hours
#   make test-touched  2 minutes of those long tests that a change since main concerns
#   make test-floor what torch may do otherwise, frontends and compiled code, on the oldest torch of pyproject.toml, in .venv-floor;
#                   TORCH=2.12.0 or TORCH=newest: on that one
#   make audit      every interval of the published tables once more, by code of its own (tests/audit)
#   make gpu        on a machine with a GPU: jobs of ten minutes at most that leave tables in results/gpu, resumed where they stopped;
#                   JOBS="steps session" some of them, JOBS=--list what they are and what they lack here
#   make docs       pages of methods, verbs and keys and what `advise` knows, from declarations and published tables
#   make lint       formatting, ruff, mypy
#   make system     as root on Debian or Ubuntu: what some tests need (Slurm, iproute2, Chromium, g++)
# Variables:
#   PYTHON=python3.12            the interpreter that .venv is made from (3.11 or newer)
#   PIP_OPTIONS="--option ..."   passed on to `pip install`, for instance the index of CPU-only builds of torch
#   BENCH=smoke                  instead of quick, and its page alone: a minute, to see that everything works
#   TESTS="tests/report -x"      what pytest gets besides its configuration
#   WORKERS=0                    processes that share the tests (2, or 3 where tests of Slurm and links wait). 0: one after the other

PYTHON ?= python3
PIP_OPTIONS ?=
BENCH ?= quick
TESTS ?=
WORKERS ?= 3
JOBS ?=
SHARED = -n $(WORKERS) --no-loadscope-reorder
VENV := .venv
GPU_PYTHON = $(if $(wildcard $(VENV)/bin/python),$(VENV)/bin/python,$(PYTHON))
PYTEST = $(VENV)/bin/python -m pytest --benchmark-disable
# The oldest torch that a user's environment may have; the build for GPUs brings Triton, which compiles the kernels without one.
TORCH ?= $(shell sed -nE 's/^dependencies.*"torch>=([0-9.]+)".*/\1/p' pyproject.toml)
FLOOR := .venv-floor
FLOOR_TESTS := $(addprefix tests/reference_impls/,test_attach.py test_frontends.py test_ddp_hook.py test_fsdp.py \
	test_gpu_code.py test_optimizer.py test_compile_cache.py compressors/test_compiled.py)
SYSTEM_PACKAGES := slurm-wlm munge iproute2 chromium g++ python3-dev dataset-fashion-mnist

# Where this is set, every process of the tests would compile the sources, and pytest its assertions, anew: a third of its start.
export PYTHONDONTWRITEBYTECODE :=

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:
.PHONY: bench pages gpu test test-system test-touched test-full test-floor floor audit docs lint system setup system-for-ci

# 4: no emulated cluster can be made here; the page then says why there is no speedup, and what to do.
bench: setup
	@$(VENV)/bin/bandwise sweep $(BENCH)
	$(VENV)/bin/bandwise session $(BENCH) || [ $$? = 4 ]
	$(VENV)/bin/bandwise report $(filter smoke,$(BENCH))

# The pages of all that is here or published.
pages: setup
	$(VENV)/bin/bandwise report

# Few of these wait, and each worker imports all of them.
test: WORKERS := 2
test: setup system-for-ci
	$(PYTEST) -m "not full and not system" $(SHARED) $(TESTS)

# Files that name one of these; tests/conftest.py sees to it that all do. To import the others would take each worker longer.
test-system: setup system-for-ci
	$(PYTEST) -m "system and not full" $(SHARED) $(or $(TESTS), \
		$$(grep -rlE --include='test_*.py' 'mark\.(slurm|chromium)|possible' tests))

# 5 is pytest's word for: these folders have no long tests.
test-touched: WORKERS := 2
test-touched: setup
	@touched=$$($(VENV)/bin/python -m tests.touched)
	[ -n "$$touched" ] || { echo "no long test is concerned"; exit 0; }
	$(PYTEST) -m "full and not system" --minutes 2 $(SHARED) $$touched || [ $$? = 5 ]

test-full: setup system-for-ci
	$(PYTEST) --ignore=tests/bench $(SHARED) $(TESTS)
	$(VENV)/bin/python -m pytest tests/bench

test-floor: WORKERS := 2
test-floor: floor
	$(FLOOR)/bin/python -c 'import torch; print("torch", torch.__version__)'
	$(FLOOR)/bin/python -m pytest --benchmark-disable -m "not full and not system" $(SHARED) $(FLOOR_TESTS) $(TESTS)

# That torch and what it needs; all else is found in .venv, behind these.
floor: setup
	[ -x $(FLOOR)/bin/python ] || $(VENV)/bin/python -m venv --without-pip $(FLOOR)
	$(VENV)/bin/python -m pip --python $(FLOOR)/bin/python install --quiet --no-compile --upgrade $(PIP_OPTIONS) \
		torch$(if $(filter newest,$(TORCH)),,==$(TORCH))
	ls -d "$(CURDIR)"/$(VENV)/lib/python*/site-packages >"$$(ls -d $(FLOOR)/lib/python*/site-packages)/rest.pth"

audit: setup
	$(VENV)/bin/python -m tests.audit

docs: setup
	$(VENV)/bin/python -m docs.make

# Not from .venv where there is none: machines with GPUs may have no network, and most jobs need no more than their torch.
gpu:
	$(GPU_PYTHON) -m suite.gpu $(JOBS)

lint: setup
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

system:
	@.ci/system $(SYSTEM_PACKAGES)

# In continuous integration a test may not skip for want of a program, so the programs are installed first.
system-for-ci:
	@if [ "$${CI:-}" = true ] && [ "$$(id -u)" = 0 ]; then .ci/system $(SYSTEM_PACKAGES); fi

# Cheap when nothing changed: .ci/environment compares a checksum of the pins with the one it wrote last.
setup:
	@PYTHON="$(PYTHON)" VENV="$(VENV)" .ci/environment $(PIP_OPTIONS)
