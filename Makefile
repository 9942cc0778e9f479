# `make demo` and `make test` each do all of their own set-up.
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PORT := 9092
DATA := .kafka

.DEFAULT_GOAL := help
.PHONY: help install demo kafka test test-real test-kafka bench experiments lint types contracts check acceptance lock clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/ - /' | sort

install: $(INSTALLED)  ## .venv with the `kairos` command
$(INSTALLED): requirements.lock requirements-model.lock pyproject.toml scripts/install.sh
	@sh scripts/install.sh $(VENV)

demo: $(INSTALLED)  ## three agent applications on two real model servers, under three minutes
	@$(BIN)/kairos demo

kafka:  ## one Kafka node on loopback, for development; PORT=9092 DATA=.kafka
	@bash scripts/kafka.sh --port $(PORT) --data $(DATA)

test: $(INSTALLED)  ## unit, property, contract and simulation tests, and end to end on the stand-in
	@$(BIN)/pytest -m "not real and not kafka"

test-real: $(INSTALLED)  ## end to end on real model servers (llama.cpp)
	@$(BIN)/pytest -m real

test-kafka: $(INSTALLED)  ## what needs a real Kafka: its crashes, and those of the services on it
	@$(BIN)/pytest -m kafka

bench: $(INSTALLED)  ## what the gateway, learning, ranking, queueing and Kafka cost
	@$(BIN)/python -m bench.gateway
	@$(BIN)/python -m bench.learning
	@$(BIN)/python -m bench.bus
	@$(BIN)/python -m bench.ranks

experiments: $(INSTALLED)  ## what learning the order is worth: accuracy, every policy, the demo
	@$(BIN)/python -m experiments.ordering
	@$(BIN)/python -m experiments.policies
	@$(BIN)/python -m experiments.versus

lint: $(INSTALLED)  ## ruff
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(INSTALLED)  ## mypy --strict
	@$(BIN)/mypy

contracts: $(INSTALLED)  ## imports point one way
	@$(BIN)/lint-imports

acceptance: check test-real test-kafka bench experiments  ## all of it: an hour

check: test lint types contracts  ## everything that needs no real engine

lock: $(INSTALLED)  ## rewrite the lock files from pyproject.toml
	@sh scripts/lock.sh $(VENV)

clean:  ## remove what install and kafka made
	rm -rf $(VENV) .venv-bench .kafka
