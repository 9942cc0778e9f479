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
TEST_PROCESSES = $(shell expr $$(nproc) + 2)
# What needs no service and is not too long for the gate.
GATE := not real and not kafka and not ray and not vllm and not frameworks and not soak and not acceptance and not browser and not long
# Files with tests of a mark: to collect the others takes longer than many of them run.
marked = $(shell grep -lrE --include='test_*.py' 'mark\.$(1)\b' tests)
PYTEST = $(BIN)/pytest
costs = --costs=.costs/$(1).jsonl
# A vLLM of the user's own needs no installing.
VLLM_INSTALLED := $(if $(KAIROS_VLLM),,.venv-vllm/.installed)

# Without compiled code on disk each process that a test starts compiles Kairos anew: a second of CPU.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: acceptance acceptance-agents acceptance-attacks acceptance-batches acceptance-containers acceptance-due acceptance-experiments acceptance-flows acceptance-overload acceptance-restarts acceptance-rows acceptance-sanitizers bench bench-fresh bench-hot bench-tables check clean compile contracts demo docs durations experiments experiments-full flaky flow-demo fuzz gate-under-load help install install-bench install-docs install-frameworks install-ray install-vllm kafka kinds lint lock mutants profile rag-demo smoke soak test test-browser test-fast test-floors test-frameworks test-http test-kafka test-laws test-long test-ray test-real test-soak test-source test-vllm types vllm acceptance-batches acceptance-overload acceptance-restarts acceptance-flows acceptance-experiments

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

install-ray: .venv-ray/.installed  ## .venv-ray with Ray, for runs on it: 0.8 GB
.venv-ray/.installed: requirements-ray.lock scripts/install-ray.sh
	@sh scripts/install-ray.sh .venv-ray

FRAMEWORKS :=
ifeq ($(FRAMEWORKS),)
install-frameworks: .venv-frameworks/.installed  ## .venv-frameworks with nine agent frameworks: 3 GB; FRAMEWORKS='langgraph crewai'
else
install-frameworks:
	@sh scripts/install-frameworks.sh .venv-frameworks $(FRAMEWORKS)
endif
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

demo: $(INSTALLED)  ## what Kairos gains, in virtual time; then the same tasks on two real model servers, one for each order: under two minutes
	@$(BIN)/kairos demo --versus fcfs --workflows 16 --rate 0.6 --time-limit 75

flow-demo: $(INSTALLED)  ## five declared workflows over real data, on two real model servers, in some minutes; ROWS=8
	@$(BIN)/python -m examples.demo --rows $(or $(ROWS),8)

rag-demo: $(INSTALLED)  ## a question about this repository's documentation, answered by two real models, and what overlapped: a minute or two; QUESTION='...'
	@$(BIN)/python -m examples.rag_demo $(if $(QUESTION),"$(QUESTION)")

kafka: PORT := 9092
kafka:  ## one Kafka node on loopback, for development; PORT=9092 DATA=.kafka
	@bash scripts/kafka.sh --port $(PORT) --data $(DATA)

vllm: PORT := 8101
vllm: $(INSTALLED) $(VLLM_INSTALLED)  ## vLLM instances on the CPU; N=2 MODEL=tiny (small, mid, large) PORT=8101 OPTIONS='of vLLM'
	@$(BIN)/python -m scripts.vllm_engines --count $(N) --model $(MODEL) --port $(PORT) $(OPTIONS)

test: $(INSTALLED)  ## unit, property, contract and simulation tests, and end to end on the stand-in: some minutes
	@$(PYTEST) -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder $(call costs,test) -m "$(GATE)"

test-fast: $(INSTALLED)  ## unit tests of the core and of what a call passes through, in under a minute
	@$(PYTEST) -q tests/unit/core \
		$(addprefix tests/unit/,request proxy gateway engines cluster/local)

test-source: $(INSTALLED)  ## where the brain is compiled: its laws on its source, and tests that replace parts of it
	@KAIROS_INTERPRETED=1 $(PYTEST) $(call costs,source) -m "(interpreted or both) and not long" \
		$(call marked,(interpreted|both))

kinds: $(INSTALLED)  ## how calls are refused, retried and failed over: the tables of tests/kinds, a line for each row
	@$(PYTEST) tests/kinds -n $(TEST_PROCESSES) -v

smoke: OF := kafka
smoke: $(INSTALLED)  ## of tests that need a service, what the gate runs; OF=kafka (vllm, real, frameworks, browser)
	@$(PYTEST) $(call costs,smoke-$(OF)) -m "smoke and $(OF)" $(call marked,$(OF))

test-real: $(INSTALLED)  ## end to end on real model servers (llama.cpp)
	@$(PYTEST) -m "real and not acceptance" $(call marked,real)

test-kafka: $(INSTALLED)  ## what needs a real Kafka: its crashes, and those of the services on it
	@$(PYTEST) -m "kafka and not acceptance" $(call marked,kafka)

test-ray: .venv-ray/.installed  ## runs on a real Ray with a real PostgreSQL: tables, kills, what is asked twice
	@PYTHONPATH=. .venv-ray/bin/python -m pytest -m ray -s tests/ray

test-vllm: $(INSTALLED) $(VLLM_INSTALLED)  ## end to end on real vLLM, on the CPU
	@$(PYTEST) -m "vllm and not acceptance" $(call marked,vllm)

test-browser: $(INSTALLED)  ## the operators' page in Chromium, which it installs where apt-get can
	@sh scripts/install-browser.sh
	@$(PYTEST) -m browser $(call marked,browser)

test-frameworks: $(INSTALLED) .venv-frameworks/.installed  ## agents of nine real frameworks, each in its own environment
	@$(PYTEST) -m frameworks $(call marked,frameworks)

test-soak: $(INSTALLED)  ## two minutes of load before engines that crash, hang and answer wrongly
	@$(PYTEST) -m soak tests/soak

test-long: $(INSTALLED)  ## what needs no service, but more time than the gate has
	@$(PYTEST) -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder $(call costs,long) \
		-m "long and not kafka and not vllm and not frameworks and not real and not browser and not ray" $(call marked,long)

test-laws: $(INSTALLED)  ## laws on freshly drawn examples, 200 each: of what is compiled, and of its source
	@KAIROS_EXAMPLES=random $(PYTEST) -n $(TEST_PROCESSES) --dist loadfile -m "hypothesis and not ray" \
		$$(grep -lr --include='test_*.py' hypothesis tests)
	@KAIROS_EXAMPLES=random KAIROS_INTERPRETED=1 $(PYTEST) -n $(TEST_PROCESSES) --dist loadfile \
		-m "hypothesis and (interpreted or both)" $(call marked,(interpreted|both))

# Of packages that are older than what they use, some warn.
test-floors: .venv-floors/.installed  ## the HTTP ports, with the lowest versions of packages that pyproject.toml allows
	@KAIROS_INTERPRETED=1 .venv-floors/bin/python -m pytest -n $(TEST_PROCESSES) -W ignore::DeprecationWarning \
		-m "$(GATE)" tests/unit/gateway tests/unit/request tests/unit/workflows/declare $(addprefix tests/e2e/, \
		test_allowed_hosts.py test_audit.py test_bad_input.py test_batches.py test_flows_online.py \
		test_http_clients.py engines/test_instances.py gateway/test_page_acts.py gateway/test_page_routes.py test_roles.py test_tls.py \
		test_tls_engines.py test_zstd_bodies.py)
.venv-floors/.installed: requirements-floors.lock
	@python3 -m venv .venv-floors
	@.venv-floors/bin/python -m pip --disable-pip-version-check install --quiet --require-hashes -r requirements-floors.lock
	@touch $@

test-http: $(INSTALLED)  ## the HTTP server and client against other readers, and behind real proxies
	@$(PYTEST) -m "long or not long" tests/conformance tests/e2e/test_http_clients.py tests/e2e/test_http_proxies.py

# Each file by itself: a part of the acceptance run takes at most 40 minutes.
acceptance-batches: FILES := tests/acceptance/test_batch_kills.py
acceptance-overload: FILES := tests/acceptance/test_overload.py
acceptance-agents: FILES := tests/acceptance/test_coding_agents.py
acceptance-restarts: FILES := tests/acceptance/test_restarts.py tests/faults/test_villain_vllm.py
acceptance-flows: FILES := $(addprefix tests/,acceptance/test_flows.py acceptance/test_flow_plan.py e2e/test_flow_equality.py e2e/cli/test_engine_host.py)
acceptance-experiments: FILES := $(addprefix tests/e2e/,test_gpu.py test_vllm_placements.py workflows/test_flows_vllm.py)
acceptance-batches acceptance-overload acceptance-restarts acceptance-flows acceptance-experiments: $(INSTALLED) $(VLLM_INSTALLED)
	@$(PYTEST) -m acceptance -s $(FILES)

acceptance-attacks: $(INSTALLED)
	@$(BIN)/python -m tests.acceptance.attacks

acceptance-sanitizers: $(INSTALLED)
	@$(BIN)/python -m tests.fuzz.sanitized 1800

acceptance-containers: $(INSTALLED)
	@$(PYTEST) -m acceptance -s tests/acceptance/test_containers.py

acceptance-rows: FILES := tests/acceptance/test_bad_rows.py
acceptance-rows: $(INSTALLED)
	@$(PYTEST) -m acceptance -s $(FILES)

acceptance-agents: $(INSTALLED) .venv-agents/.installed
	@$(PYTEST) -m acceptance -s $(FILES)

.venv-agents/.installed: scripts/install-agents.sh
	@sh scripts/install-agents.sh .venv-agents

PART := list
acceptance: $(INSTALLED)  ## what is too long for the gate, in parts that are recorded; PART=kafka, or due; without: the list
	@$(BIN)/python -m quality.acceptance $(if $(filter list,$(PART)),list,run $(PART))

acceptance-due: $(INSTALLED)  ## the parts of the acceptance run whose code has changed since they passed
	@$(BIN)/python -m quality.acceptance due

SEED := 1
COUNT := 120
mutants: $(INSTALLED)  ## would the gate notice? mutants of the product, each against the tests that reach it; SEED=1 COUNT=120
	@$(BIN)/python -m quality.mutants --seed $(SEED) --count $(COUNT)

RUNS := 5
gate-under-load: $(INSTALLED)  ## make test, RUNS=5 times, with a busy process for each core
	@$(BIN)/python -m quality.repeat load $(RUNS)

REPEAT := 20
flaky: $(INSTALLED)  ## the 100 slowest tests of the last make test, REPEAT=20 times
	@$(BIN)/python -m quality.repeat flaky $(REPEAT)

durations: $(INSTALLED)  ## by the last make test: which files of tests are run first
	@$(BIN)/python -m tests.support.costs

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
	@$(BIN)/python -m bench.startup
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

lint: $(INSTALLED)  ## ruff; how plainly texts are worded, by folder; subjects of commits
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@$(BIN)/python -m scripts.prose_lint && $(BIN)/python -m scripts.prose_lint --subjects

types: $(INSTALLED)  ## mypy --strict, benches and experiments included
	@$(BIN)/mypy

contracts: $(INSTALLED)  ## imports point one way
	@$(BIN)/lint-imports

check: test lint types contracts  ## everything that needs no real engine

lock: $(INSTALLED)  ## rewrite the lock files from pyproject.toml
	@sh scripts/lock.sh $(VENV)

clean:  ## remove what install, install-vllm, fuzz and kafka made
	rm -rf $(VENV) .venv-vllm .venv-bench .venv-docs .venv-fuzz site .kafka .fuzz
