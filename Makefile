# Entry point of development tasks. `make demo` and `make test` set up what they need.
SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help setup setup-tests demo test test-all test-long test-engines chaos check advisories dist bench docs preview up destroy analyze watch report clean

PYTHON ?= $(shell for p in python3.11 python3.12 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null && echo $$p && break; done)
ENV := .venv/bin/python
RUN := $(ENV) -m
STACK ?= aws-local
PAUSED ?=
CLOUD ?= aws
ENGINE ?= simulated
CONTROL ?= processes
# byte code halves the time of every command; it is in .venv and in __pycache__, which git ignores
unexport PYTHONDONTWRITEBYTECODE
FLEET ?=
SEED ?=
FAULT ?=
MINUTES ?= 30
# WORKERS: the number of test files that run in parallel; 0 runs them one after another, in one process
PYTEST = $(RUN) pytest -n '$(WORKERS)' --no-loadscope-reorder

help:
	@echo 'make demo      a full scenario on this machine: a cloud on loopback, pools, watchdogs, a cost report (CLOUD=gcp: emulated Google Cloud; ENGINE=sglang, trtllm, triton, lmdeploy or dynamo: that engine, simulated, in one pool; ENGINE=vllm: real vLLM in one pool; CONTROL=machine: the control host is lost and replaced)'
	@echo 'make test      the tests (6 min on 2 cores); make test-all adds checks, slow proofs and the demo as a test'
	@echo 'make test-long   the slow tests with the other cloud, other signals and sizes; run it before a release'
	@echo 'make test-engines   compares real vLLM, Triton and SGLang (10 GB, fetched once) with their simulators, and runs vLLM and SGLang in one fleet'
	@echo 'make setup     install what both need; prints what it installs and why'
	@echo 'make chaos     faults of all kinds on an embedded cloud for MINUTES=$(MINUTES), in the order of SEED=..., then checks of the result'
	@echo 'make check     ruff, pyright, import rules, licences; known vulnerabilities of packages, if make advisories has fetched them'
	@echo 'make dist      wheel and control-host bundle in dist/, each with its bill of materials (CycloneDX)'
	@echo 'make docs      the pages of docs/ as a site in .local/site, with pictures if Chromium is installed'
	@echo 'make bench     measure the numbers of docs/benchmarks.md on this machine'
	@echo 'make preview | up | destroy   pulumi on STACK=$(STACK) (destroy, and an up that replaces machines, pause its watchdogs first); make analyze   checks the policies on the deployed resources'
	@echo 'make watch | report   the watchdogs and the cost report'
	@echo 'make clean     stop what runs and remove .local'

# setup-tests adds what slow proofs need: a browser, a database and a validator of FOCUS
setup setup-tests:
	@[ -n '$(PYTHON)' ] || { echo 'setup: Python 3.11 or 3.12 is needed (Debian: apt-get install python3.11); found none' >&2; exit 1; }
	@$(PYTHON) -m scripts.setup $(if $(findstring tests,$@),--tests)

demo: setup
	@$(RUN) scripts.demo --cloud '$(CLOUD)' --engine '$(ENGINE)' --control '$(CONTROL)'

# Half of the time is waiting for processes and clouds: four share two cores well.
test: WORKERS ?= 4
test: setup
	@$(PYTEST) -m 'not slow and not live and not engines'

# Whole fleets, browsers and vLLM need much CPU and memory: two workers, here and in CI.
test-all: WORKERS ?= 2
test-all: setup-tests check
	@$(PYTEST) -m 'not live and not engines and not long'

# Not in CI, which has 90 minutes: other clouds, signals and sizes of proofs that `make test-all` has. Before a release.
test-long: WORKERS ?= 2
test-long: setup-tests
	@$(PYTEST) -m 'long and not live and not engines'

# Not in CI: SGLang takes 10 GB, and the comparisons 30 minutes. CI compares the recorded pages of all engines.
test-engines: setup
	@$(RUN) pytest -n 0 -m engines tests/engines

# SEED: the order of the faults (random and printed if not given); MINUTES=0: each fault once, and short;
# FAULT='router killed': only this fault
chaos: setup
	@$(RUN) tests.chaos $(if $(SEED),--seed '$(SEED)') $(if $(FAULT),--fault "$$FAULT") --minutes '$(MINUTES)'

# Node's own limit (4 GB here) is so close to what pyright needs that it spends two thirds of its time on freeing memory.
check: setup
	@$(RUN) ruff check .
	@$(RUN) ruff format --check .
	@NODE_OPTIONS=--max-old-space-size=8192 $(RUN) pyright
	@PYTHONPATH=. .venv/bin/lint-imports
	@$(RUN) scripts.audit
	@$(RUN) scripts.licences

# Known vulnerabilities of Python packages (OSV's records, 40 MB); `make check` compares uv.lock with them if they are present.
advisories:
	@mkdir -p .local/advisories
	@curl -fsSL --retry 3 -o .local/advisories/pypi.part https://osv-vulnerabilities.storage.googleapis.com/PyPI/all.zip
	@mv .local/advisories/pypi.part .local/advisories/pypi.zip

dist: setup
	@$(RUN) scripts.dist

bench: setup
	@$(RUN) benchmarks --out docs/benchmarks.md

docs: setup
	@$(RUN) scripts.reference
	@$(RUN) mkdocs build --strict --quiet
	@$(RUN) scripts.pictures
	@echo 'docs: .local/site/index.html'

# A stack ending in -local runs on the embedded cloud, in its environment and never in yours.
local_env = case '$(STACK)' in *-local) eval "$$($(RUN) cli.main local env)" ;; esac

# Pulumi would fetch a missing provider by itself, and compare it with nothing.
plugins = export PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION=true; $(RUN) scripts.plugins '$(STACK)'

preview: setup
	@$(local_env); $(plugins) && pulumi preview --policy-pack policies --stack '$(STACK)'

# An update that deletes or replaces a group, its launch template, a reservation or the control host is a big one: the
# fleet's watchdogs are paused first, as before destroy.
up: setup
	@$(local_env); $(plugins) && $(RUN) scripts.cut_off '$(STACK)' \
		&& { [ -n '$(PAUSED)' ] || $(RUN) scripts.pause_first '$(STACK)' --if-big --reason 'pulumi up of $(STACK)'; } \
		&& pulumi up --policy-pack policies --stack '$(STACK)'

# Pauses the fleet's watchdogs first. PAUSED=yes: they are paused already, on the machine that has their ledger.
destroy: setup
	@$(local_env); $(plugins) && $(RUN) scripts.cut_off '$(STACK)' \
		&& { [ -n '$(PAUSED)' ] || $(RUN) scripts.pause_first '$(STACK)' --reason 'pulumi destroy of $(STACK)'; } \
		&& pulumi destroy --stack '$(STACK)'

# Checks the policies on the deployed resources instead of on a plan.
analyze: setup
	@$(local_env); GPUFLEET_SETTINGS='stacks/config/Pulumi.$(STACK).yaml' \
		pulumi policy analyze --policy-pack policies --stack '$(STACK)'

watch: setup
	@$(local_env); $(RUN) cli.main watch run $(if $(FLEET),--fleet '$(FLEET)')

report: setup
	@$(local_env); $(RUN) cli.main report cost --since 1h $(if $(FLEET),--fleet '$(FLEET)')

clean:
	@if [ -x $(ENV) ] && [ -d .local ]; then $(RUN) cli.main local down || true; fi
	@rm -rf .local .pytest_cache .ruff_cache .hypothesis .import_linter_cache dist
