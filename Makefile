# `make demo` and `make test` each do all of their own set-up.
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DATA := .kafka
N := 2
SECONDS := 60
MODEL := tiny
KIND := standin
# A third of their time tests wait.
TEST_PROCESSES = $(shell expr $$(nproc) + 1)
# A vLLM of the user's own needs no installing.
VLLM_INSTALLED := $(if $(KAIROS_VLLM),,.venv-vllm/.installed)

# Without compiled code on disk each process that a test starts compiles Kairos anew: a second of CPU.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install compile install-vllm install-frameworks install-bench install-docs docs test-fast demo flow-demo rag-demo kafka vllm test test-source test-real test-kafka test-vllm test-frameworks test-browser test-soak test-acceptance soak fuzz bench bench-hot profile bench-tables bench-fresh experiments experiments-full lint types contracts check acceptance lock clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/ - /' | sort

install: $(INSTALLED)  ## .venv with the `kairos` command
$(INSTALLED): requirements.lock requirements-model.lock pyproject.toml scripts/install.sh hatch_build.py scripts/compile_native.py $(wildcard kairos/*/*.c kairos/*/*/*.c)
	@sh scripts/install.sh $(VENV)

compile: $(INSTALLED)  ## the brain compiled to C, two minutes: its part of a call costs a third less; needs cc and Python's headers
	@$(BIN)/python -m scripts.compile_brain

install-vllm: $(VLLM_INSTALLED)  ## .venv-vllm with vLLM for CPUs: 2 GB
.venv-vllm/.installed: requirements-vllm.lock scripts/install-vllm.sh
	@sh scripts/install-vllm.sh .venv-vllm

install-frameworks: .venv-frameworks/.installed  ## .venv-frameworks with nine agent frameworks: 3 GB
.venv-frameworks/.installed: $(wildcard tests/frameworks/*/requirements.lock) scripts/install-frameworks.sh
	@sh scripts/install-frameworks.sh .venv-frameworks

install-bench: .venv-bench/.installed  ## .venv-bench with vllm-router, to which benches compare
.venv-bench/.installed: bench/requirements.lock | $(INSTALLED)
	@$(BIN)/python -m bench.systems && touch $@

install-docs: .venv-docs/.installed  ## .venv-docs with mkdocs-material
.venv-docs/.installed: requirements-docs.lock scripts/install-docs.sh
	@sh scripts/install-docs.sh .venv-docs

docs: $(INSTALLED) .venv-docs/.installed  ## the documentation site, into site/; fails at a warning or an old reference page
	@$(BIN)/python scripts/reference.py --check
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --quiet

demo: $(INSTALLED)  ## what Kairos gains: the same tasks on two real model servers under two orders, under three minutes
	@$(BIN)/kairos demo --versus fcfs --workflows 24

flow-demo: $(INSTALLED)  ## five declared workflows over real data, on two real model servers, in some minutes; ROWS=8
	@$(BIN)/python -m examples.demo --rows $(or $(ROWS),8)

rag-demo: $(INSTALLED)  ## a question about this repository's documentation, answered by two real models, and what overlapped: a minute or two; QUESTION='...'
	@$(BIN)/python -m examples.rag_demo $(if $(QUESTION),"$(QUESTION)")

kafka: PORT := 9092
kafka:  ## one Kafka node on loopback, for development; PORT=9092 DATA=.kafka
	@bash scripts/kafka.sh --port $(PORT) --data $(DATA)

vllm: PORT := 8101
vllm: $(INSTALLED) $(VLLM_INSTALLED)  ## vLLM instances on the CPU; N=2 MODEL=tiny (small, mid, large) PORT=8101 OPTIONS='of vLLM'
	@$(BIN)/python -m kairos.demo.vllm --count $(N) --model $(MODEL) --port $(PORT) $(OPTIONS)

test: $(INSTALLED)  ## unit, property, contract and simulation tests, and end to end on the stand-in
	@$(BIN)/pytest -n $(TEST_PROCESSES) --dist loadfile -m "not real and not kafka and not vllm and not frameworks and not soak and not acceptance and not browser"

test-fast: $(INSTALLED)  ## unit tests of the core and of what a call passes through, in under a minute
	@$(BIN)/pytest -q tests/unit/scheduler tests/unit/dispatcher tests/unit/orchestrator tests/unit/test_balancer.py \
		$(addprefix tests/unit/live/,request proxy frontend engines control)

test-source: $(INSTALLED)  ## where the brain is compiled: its laws on its source, and tests that replace parts of it
	@KAIROS_INTERPRETED=1 $(BIN)/pytest -m "(interpreted or both) and not long" \
		$$(grep -lrE --include='*.py' 'mark\.(interpreted|both)' tests/property tests/simulation tests/unit)

test-real: $(INSTALLED)  ## end to end on real model servers (llama.cpp)
	@$(BIN)/pytest -m real

test-kafka: $(INSTALLED)  ## what needs a real Kafka: its crashes, and those of the services on it
	@$(BIN)/pytest -m kafka

test-vllm: $(INSTALLED) $(VLLM_INSTALLED)  ## end to end on real vLLM, on the CPU
	@$(BIN)/pytest -m vllm

test-browser: $(INSTALLED)  ## the operators' page in Chromium, which it installs where apt-get can
	@sh scripts/install-browser.sh
	@$(BIN)/pytest -m browser

test-frameworks: $(INSTALLED) .venv-frameworks/.installed  ## agents of nine real frameworks, each in its own environment
	@$(BIN)/pytest -m frameworks

test-soak: $(INSTALLED)  ## two minutes of load before engines that crash, hang and answer wrongly
	@$(BIN)/pytest -m soak

test-acceptance: $(INSTALLED) $(VLLM_INSTALLED)  ## fifty minutes: experiments on real vLLM in their short forms; real vLLM killed and restarted under load; five minutes of overload; batches through kills
	@$(BIN)/pytest -m acceptance -s

soak: SECONDS := 1800
soak: N := $(if $(filter vllm,$(KIND)),2,3)
soak: SEED := 1
soak: $(INSTALLED) $(if $(filter vllm,$(KIND)),$(VLLM_INSTALLED))  ## half an hour of load before engines that crash, hang and answer wrongly; SECONDS=1800 SEED=1 N=3; KIND=vllm for real ones
	@$(BIN)/python -m tests.soak --seconds $(SECONDS) --seed $(SEED) --kind $(KIND) --engines $(N)

fuzz: .venv-fuzz/.installed  ## random input to each parser, led by what code it reaches; SECONDS=60 for each
	@.venv-fuzz/bin/python -m tests.fuzz.run $(SECONDS)
.venv-fuzz/.installed: requirements-runtime.lock tests/fuzz/requirements.lock scripts/install-fuzzer.sh
	@sh scripts/install-fuzzer.sh .venv-fuzz

bench: compile  ## what the gateway, learning, ranking, queueing, placing and Kafka cost; how fast a pool is simulated
	@$(BIN)/python -m bench.gateway
	@PYTHONPATH=client $(BIN)/python -m bench.identity
	@$(BIN)/python -m bench.learning
	@$(BIN)/python -m bench.placement
	@$(BIN)/python -m bench.brain
	@$(BIN)/python -m bench.bus
	@$(BIN)/python -m bench.ranks
	@$(BIN)/python -m bench.simulation
	@$(BIN)/python -m bench.fairness
	@$(BIN)/python -m bench.flow_runs
	@$(BIN)/python -m bench.poisoned
	@$(BIN)/python -m bench.flows
	@$(BIN)/python -m bench.health
	@$(BIN)/python -m bench.ui
	@$(BIN)/python -m bench.workers
	@$(BIN)/python -m bench.tls

bench-hot: compile install-bench  ## has a call become dearer? ratios to vllm-router against bench/budget.toml: 90 s
	@$(BIN)/python -m bench.hot

profile: $(INSTALLED)  ## where a call's CPU time goes, into docs/profile.md: four minutes; ONLY='64 instances'
	@KAIROS_INTERPRETED=1 $(BIN)/python -m bench.profile --only "$(ONLY)"

bench-tables: $(INSTALLED)  ## the documentation's tables anew, from what make bench kept
	@$(BIN)/python -m bench.tables

bench-fresh: $(INSTALLED)  ## fails where a table of the documentation is of other code than today's
	@$(BIN)/python -m bench.tables --fresh

experiments: $(INSTALLED) $(VLLM_INSTALLED)  ## every claim on a reduced grid, in under ten minutes; and REPORT.md anew, from the rows of the full one
	@$(BIN)/python -m experiments run --quick
	@$(BIN)/python -m experiments report

experiments-full: $(INSTALLED) $(VLLM_INSTALLED)  ## every claim in full, and what measures for itself: four hours
	@$(BIN)/python -m experiments run
	@$(BIN)/python -m experiments.e00_fidelity
	@$(BIN)/python -m experiments.policies
	@$(BIN)/python -m experiments.versus
	@$(BIN)/python -m experiments.placements_vllm
	@$(BIN)/python -m experiments.flows_vllm

lint: $(INSTALLED)  ## ruff
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(INSTALLED)  ## mypy --strict, benches and experiments included
	@$(BIN)/mypy

contracts: $(INSTALLED)  ## imports point one way
	@$(BIN)/lint-imports

acceptance: check test-real test-browser test-kafka test-vllm test-frameworks test-acceptance soak bench bench-tables bench-fresh experiments-full  ## all of it: five and a half hours
	@$(MAKE) soak KIND=vllm

check: test lint types contracts  ## everything that needs no real engine

lock: $(INSTALLED)  ## rewrite the lock files from pyproject.toml
	@sh scripts/lock.sh $(VENV)

clean:  ## remove what install, install-vllm, fuzz and kafka made
	rm -rf $(VENV) .venv-vllm .venv-bench .venv-docs .venv-fuzz site .kafka .fuzz
