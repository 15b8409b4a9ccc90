# Everything starts here: `make` lists the targets.  Needs make, git and Python >= 3.11 with venv.
#
#   make demo ARGS="--once -f json"     arguments go to the command behind the target
#   make test ARGS="-k log -x"
#   make simulate SEEDS=500 FROM=40     storms over a whole simulated cloud
#   make lab TIER=full                  root, Debian

PYTHON ?= python3
VENV   ?= .venv
ARGS   ?=
TIER   ?= full
SEEDS  ?= 200
FROM   ?= 0

# Tests start our programs hundreds of times: they are compiled once, whatever the shell says.
export PYTHONDONTWRITEBYTECODE :=
# Half of a test's time it waits for a process or a disk, so there are more workers than cores.
export PYTEST_XDIST_AUTO_NUM_WORKERS ?= $(shell expr $$(nproc) + $$(nproc) / 2)
# Their cases differ a hundredfold: a worker that has none left takes some of another.
PYTEST = $(BIN)/pytest -n auto --dist worksteal

BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed
MUTATION := $(VENV)/.mutation
PIP   := $(BIN)/python -m pip --disable-pip-version-check --no-input
UV    := uv==0.13.8

LOCK   := $(BIN)/uv pip compile pyproject.toml --quiet --universal --python-version 3.11 \
          --generate-hashes --no-emit-index-url --custom-compile-command "make lock"

.DEFAULT_GOAL := help
.PHONY: help setup demo check test test-deep bench bench-full bench-nova lint style types imports format docs tour simulate nightly costly model mutants rules lab conformance deb images lock clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP) ## install the locked dependencies and the project into .venv

demo: $(STAMP) ## a whole small cloud on this machine, with a crash to watch (ARGS="--once -f json")
	@$(BIN)/attachment-ledger demo $(ARGS)

check: style types ## style, types and the quick unit tests: below a minute
	$(PYTEST) tests/unit -q -m "not slow and not lab and not nightly and not costly" $(ARGS)

test: $(STAMP) ## the tests that need neither root nor network
	$(PYTEST) $(ARGS)

# $(1) pairs of troubles for each flow, every $(2)th of the cases of a test, $(3) storms.
# Of what is costly it leaves out one turn's only if TEST_TURN says whose: who does so has run those.
deep = FLOW_PAIRS=$(1) FLOW_STRIDE=$(2) SIMULATE_SEEDS=$(3) TEST_TURN=$${TEST_TURN:--1} $(PYTEST) -m "deep or further" -q $(ARGS)

costly: $(STAMP) ## measure anew which tests are costly: all of them, and tests/costly.txt
	$(PYTEST) -p tests.costs -m "not lab and not nightly" -q $(ARGS)

test-deep: $(STAMP) ## many cases of what `make test` samples: 16 pairs of troubles for each flow, 60 storms
	$(call deep,16,3,60)

simulate: $(STAMP) ## seeded storms over a whole simulated cloud (SEEDS=200 FROM=0)
	SIMULATE_SEEDS=$(SEEDS) SIMULATE_FROM=$(FROM) $(BIN)/pytest tests/simulation -q $(ARGS)

nightly: $(STAMP) ## what takes too long for every change: processes under faults for minutes, all cases, 500 pairs of troubles for each flow, 3000 storms, the rules of the specs, an hour of changes to tables and SQL
	$(BIN)/pytest -m "nightly or hypothesis" --hypothesis-profile many -q $(ARGS)
	$(call deep,500,1,3000)
	$(MAKE) costly
	$(BIN)/python -m tests.rules
	$(BIN)/python -m tests.mutation.tables --minutes 60

rules: $(STAMP) ## remove each rule of the specs and of the borders from the code: one of its tests has to fail (ARGS="3.13 0054")
	$(BIN)/python -m tests.rules $(ARGS)

model: $(STAMP) ## every story of a small cloud with two faults, ten minutes or so: docs/model.md (ARGS=--small: what a change must pass)
	$(BIN)/python -m tests.model $(ARGS)

mutants: $(MUTATION) ## nightly too: does a test fail if the core is changed in small ways? (ARGS="handlers --sample 50")
	$(BIN)/python -m tests.mutation $(ARGS)

bench: $(STAMP) ## everything measured beside its target, some minutes (ARGS="storm" for one part)
	$(BIN)/python -m tests.benchmarks --write docs $(ARGS)

bench-full: $(STAMP) ## the same with ten million events: an hour or more, 30 GB of disk
	$(BIN)/python -m tests.benchmarks --write docs --full $(ARGS)

bench-nova: $(STAMP) ## the cost of an attach and detach beside a real Nova 34, both against one real Cinder (root, Debian)
	tests/lab/bench_nova.sh $(ARGS)

lint: style types imports ## style, types, architecture

style: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(STAMP)
	$(BIN)/mypy

imports: $(STAMP)
	$(BIN)/lint-imports

format: $(STAMP) ## rewrite the code in the house's format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(STAMP) ## write docs/flows, reference.md, events.md, acts.md, commands.md, policy.yaml.sample, cinder-calls.md, the tables of policy.md and reconciliation.md
	$(BIN)/python -m tests.pages.flow_pages docs/flows
	$(BIN)/python -m tests.pages.reference_page docs/reference.md
	$(BIN)/python -m tests.pages.events_page docs/events.md
	$(BIN)/python -m tests.pages.drift_page docs/reconciliation.md
	$(BIN)/python -m tests.pages.acts_page docs/acts.md
	$(BIN)/python -m tests.pages.policy_page docs/policy.md docs/policy.yaml.sample
	$(BIN)/python -m tests.pages.commands_page docs/commands.md
	$(BIN)/python -m tests.flows.test_cinder_calls

tour: $(STAMP) ## write docs/tour.md and all pictures (Chromium: Debian's package)
	$(BIN)/python -m tests.tour

lab: $(STAMP) ## the tests against real Cinder, os-brick, libvirt ... (root, Debian; TIER=quick|full|nova|fabric|ha|operations: CONTRIBUTING.md)
	tests/lab/run.sh $(TIER)

conformance: $(STAMP) ## tempest's and openstacksdk's tests against the lab, and docs/conformance.md (root, Debian; ARGS="test_attach_volume")
	tests/lab/conformance.sh $(ARGS)

deb: $(STAMP) ## Debian packages of service and agent, each with its own environment, in dist/ (Debian 12)
	deploy/debian/build.sh service dist
	deploy/debian/build.sh agent dist

images: deb ## images of service and agent (buildah; BASE=IMAGE in place of docker.io/library/debian:12-slim)
	buildah build $(if $(BASE),--build-arg BASE=$(BASE)) -f deploy/Containerfile --target service -t attachment-ledger dist
	buildah build $(if $(BASE),--build-arg BASE=$(BASE)) -f deploy/Containerfile --target agent -t attachment-ledger-agent dist

# Changed dependencies are noticed by the lock files; the sources are installed editable.
$(STAMP): requirements.lock pyproject.toml | $(BIN)/python
	@echo "Installing the locked dependencies into $(VENV) (a minute, once) ..." >&2
	@$(PIP) install --quiet --require-hashes -r requirements.lock >&2
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable . >&2
	@touch $@

$(MUTATION): requirements-mutation.lock $(STAMP)
	@$(PIP) install --quiet --require-hashes -r requirements-mutation.lock >&2
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    found=$$(command -v $(PYTHON) >/dev/null && $(PYTHON) --version 2>&1); \
	    echo "error: Python 3.11 or newer is needed; $(PYTHON) is $${found:-not installed}"; \
	    echo "  Debian 12, Ubuntu 24.04: apt install python3 python3-venv"; \
	    echo "  elsewhere: install one and say which: make PYTHON=/path/to/python3.11"; \
	    exit 1; } >&2
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "error: $(PYTHON) has no venv module"; \
	    echo "  Debian, Ubuntu: apt install python3-venv"; \
	    exit 1; } >&2
	@$(PYTHON) -m venv $(VENV)

lock: $(BIN)/python ## resolve the dependencies of pyproject.toml anew
	@$(BIN)/uv --version >/dev/null 2>&1 || $(PIP) install --quiet $(UV)
	$(LOCK) --group build --extra service --extra otel --extra notifications --extra openstack --extra embedded --extra test --extra lint --upgrade \
	    --output-file requirements.lock
	$(LOCK) --extra agent --constraint requirements.lock --upgrade \
	    --output-file requirements-agent.lock
	$(LOCK) --extra service --extra otel --extra notifications --constraint requirements.lock --upgrade \
	    --output-file requirements-service.lock
	$(LOCK) --extra mutation --constraint requirements.lock --upgrade \
	    --output-file requirements-mutation.lock
	@! grep -nE '://|--(extra-)?index-url|--find-links' requirements*.lock

clean: ## remove everything that was made here, the environment included
	rm -rf $(VENV) build dist .hypothesis .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
