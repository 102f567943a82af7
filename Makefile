# make serve and make test do all the set-up; see README.md.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Which tables of kernels are compiled, as docs/kernels.md says; a choice that was made stays.
COREPIPE_TABLES ?= $(shell cat $(VENV)/.tables 2>/dev/null || echo native)
export COREPIPE_TABLES
# The set-up is redone when the native sources, the dependencies, the set of modules or that choice change.
SETUP_ID := $(shell (echo $(COREPIPE_TABLES); find corepipe -name '*.py' | sort; cat pyproject.toml CMakeLists.txt tools/set_up.py requirements/*.txt; find corepipe/kernels/src -type f | sort | xargs cat) | cksum | cut -d' ' -f1)
# $(call SET_UP,locked packages and options,environments that this makes)
define SET_UP
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "corepipe needs Python 3.11 or newer; name one: make PYTHON=python3.12 ...")'
@$(PYTHON) tools/set_up.py $(VENV) $(1)
@echo $(COREPIPE_TABLES) > $(VENV)/.tables
@for part in $(2); do rm -f $(VENV)/.$$part-*; touch $(VENV)/.$$part-$(SETUP_ID); done
endef
# Files of tests that run side by side: one more than two cores, as whoever started a server waits for it.
WORKERS ?= 3
# Where it is set, each of the servers that tests start would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE
# Files of tests have a core each: threads of numpy's products would wait for one another, spinning.
test digest: export OPENBLAS_NUM_THREADS = 1
CLIENTS_ID := $(shell cat tests/clients/requirements/*.txt tests/clients/node/package-lock.json | cksum | cut -d' ' -f1)
AGENTS_ID := $(shell cat tests/clients/requirements/agents/*.txt tests/clients/requirements/agents/package-lock.json | cksum | cut -d' ' -f1)
CLIENTS_UV := .venv-clients/uv/bin/uv
PIP_INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check
SITE_PACKAGES = 'import sysconfig; print(sysconfig.get_path("purelib"))'

.PHONY: serve test fleet-test test-slow same-bits busy planted constrained digest soak setup environments intervals lint lock sbom fuzz sanitize sanitize-address sanitize-thread arm parity parity-all parity-adapters parity-embeddings clients clients-agents clients-replayed clients-lock bench docs-curves wheel clean

serve: WITH_MODEL = $(if $(ARGS),,--with-model)
serve: setup            ## an OpenAI-compatible server with the default model, on port 8000
	@exec $(BIN)/corepipe serve $(ARGS)

test: $(VENV)/.test-$(SETUP_ID)  ## the test suite (eight minutes on two cores)
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

constrained: $(VENV)/.test-$(SETUP_ID)  ## 10,000 constrained answers and 1,000 forced calls, judged by jsonschema and pydantic
	$(BIN)/python -m pytest -m slow tests/constrained $(ARGS)

digest: $(VENV)/.test-$(SETUP_ID)  ## all Programs, predicted times and tokens against those that were frozen
	$(BIN)/python -m pytest --numprocesses $(WORKERS) -m digest tests/digest $(ARGS)

soak: MINUTES ?= 30
soak: $(VENV)/.test-$(SETUP_ID)  ## the long forms: faults, overload, hostile and slow clients; MINUTES of mixed traffic
	$(BIN)/python -m pytest -m slow -s tests/reliability
	$(BIN)/python -m tests.reliability.soak --minutes $(MINUTES)
	$(BIN)/python -m pytest -m slow tests/test_attacks.py tests/test_schemathesis.py $(ARGS)
	$(BIN)/python benchmarks/slowloris.py

fleet-test: $(VENV)/.fleet-$(SETUP_ID)  ## a fleet of three machines on this one, joined by Ray: strikes, drain, strangers; figures
	$(BIN)/python -m pytest -m fleet -s tests/fleet $(ARGS)
	$(BIN)/python -m pytest tests/cli/test_fleet.py

test-slow: $(VENV)/.test-$(SETUP_ID)  ## the long forms of the checks
	$(BIN)/python -m pytest -m slow $(ARGS)

busy: TIMES ?= 20
busy: NICE ?= 0
busy: $(VENV)/.test-$(SETUP_ID)  ## tests again and again beside two busy loops: ARGS=tests/x.py TIMES=20 NICE=5
	$(BIN)/python -m tests.busy --times $(TIMES) --nice $(NICE) $(ARGS)

planted: $(VENV)/.planted-$(SETUP_ID)  ## 120 planted faults: what the short suite finds of what the long one does
	$(BIN)/python -m tests.planted.run --contexts
	$(BIN)/python -m tests.planted.run --seed 0 --faults 120 $(ARGS)

same-bits: $(VENV)/.setup-$(SETUP_ID)  ## --bits same: 1,000 requests at 1, 4, 8 and 32 a time on each table of kernels: one digest
	$(BIN)/python benchmarks/same_bits.py digests --format int8 $(ARGS)
	$(BIN)/python benchmarks/same_bits.py digests --format int4-weights $(ARGS)

intervals: $(VENV)/.setup-$(SETUP_ID)  ## what intervals are made of, after a change of the cost model: ROWS=measurements.csv
	$(BIN)/python benchmarks/residuals.py $(ROWS)
	$(BIN)/python benchmarks/prediction_table.py
	$(BIN)/python benchmarks/prediction_picture.py

setup: $(VENV)/.setup-$(SETUP_ID)  ## virtual environment and native kernels, into .venv

environments: $(VENV)/.all-$(SETUP_ID)  ## all that .ci/run needs in .venv

lint: $(VENV)/.lint-$(SETUP_ID)  ## formatting, lint, security rules, types, direction of imports
	$(BIN)/ruff format --check corepipe tests tools benchmarks fuzz examples
	$(BIN)/ruff check corepipe tests tools benchmarks fuzz examples
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive corepipe
	$(BIN)/ast-grep test --config lint/sgconfig.yml --skip-snapshot-tests >/dev/null
	$(BIN)/ast-grep scan --config lint/sgconfig.yml corepipe
	$(BIN)/ast-grep scan --config lint/sgconfig.yml --filter begins-with tests tools benchmarks fuzz
	$(BIN)/python tools/figures.py check
	$(BIN)/mypy
	$(BIN)/lint-imports

COMPILE = $(BIN)/uv pip compile --quiet --python-version 3.11 --python-platform linux --generate-hashes --no-annotate \
	--no-emit-index-url --custom-compile-command 'make lock' $(ARGS)

lock: $(VENV)/.release-$(SETUP_ID)  ## the versions and hashes that the image installs; ARGS=--upgrade for the newest
	$(COMPILE) --extra tracing --extra kv-events pyproject.toml --output-file requirements/run.txt
	$(COMPILE) --constraint requirements/run.txt --extra tracing --extra kv-events --extra ray pyproject.toml \
		--output-file requirements/fleet.txt
	$(COMPILE) --constraint requirements/run.txt --extra test pyproject.toml --output-file requirements/test.txt
	$(COMPILE) --constraint requirements/run.txt --constraint requirements/test.txt --extra lint pyproject.toml \
		--output-file requirements/lint.txt
	$(COMPILE) requirements/build.in --output-file requirements/build.txt

sbom: $(VENV)/.release-$(SETUP_ID)  ## what the image's Python environment consists of (CycloneDX), into dist/
	@mkdir -p dist && rm -rf build/sbom && $(PYTHON) -m venv --without-pip build/sbom
	$(BIN)/uv pip install --quiet --python build/sbom --require-hashes --only-binary :all: -r requirements/run.txt
	$(BIN)/cyclonedx-py environment build/sbom --pyproject pyproject.toml --mc-type application \
		--output-reproducible --output-file dist/corepipe.cdx.json

fuzz: MINUTES ?= 10
fuzz: $(VENV)/.fuzz-$(SETUP_ID)  ## fuzzes what reads bytes of strangers: MINUTES=10 for all targets, TARGETS= for some
	$(BIN)/python -m fuzz.run --minutes $(MINUTES) $(TARGETS)

sanitize: sanitize-address sanitize-thread  ## the kernel tests under ASan and UBSan, and those with threads under TSan

sanitize-address sanitize-thread: sanitize-%: $(VENV)/.sanitize-$(SETUP_ID)
	WORKERS=$(WORKERS) $(BIN)/python -m tests.sanitizers.run $* $(if $(WHOLE),--whole)

budget-%:
	@$(PYTHON) tools/budget.py run $* $(MAKE) $*

arm: $(VENV)/.sanitize-$(SETUP_ID)  ## ARM's kernels, cross-compiled and emulated, against this machine's: the same bits
	$(BIN)/python -m pytest -m slow -rs tests/kernels/test_bits.py $(ARGS)

parity: .venv-parity/.parity-$(SETUP_ID)  ## compares with transformers and torch, live, and prints the table
	.venv-parity/bin/python -m tests.parity.compare $(ARGS)

parity-all: .venv-parity/.parity-$(SETUP_ID)  ## every computed family against transformers, live, on small random models
	.venv-parity/bin/python -m tests.parity.all_families $(if $(WRITE),--write) $(ARGS)
	.venv-parity/bin/python -m tests.parity.all_encoders $(if $(WRITE),--write) $(ARGS)

parity-adapters: .venv-parity/.parity-$(SETUP_ID)  ## adapters against PEFT, live, on small random models
	.venv-parity/bin/python -m tests.parity.adapters $(if $(WRITE),--write) $(ARGS)

parity-embeddings: .venv-parity/.parity-$(SETUP_ID)  ## all-MiniLM-L6-v2 and small directories against sentence-transformers, live
	.venv-parity/bin/python -m tests.parity.sentence_directories
	.venv-parity/bin/python -m tests.parity.embeddings $(if $(WRITE),--write)

clients: $(VENV)/.test-$(SETUP_ID) .venv-clients/.made-$(CLIENTS_ID)  ## real clients against a server, row by row: ARGS='openai --rows tool'
	$(BIN)/python -m tests.clients.run $(ARGS)

clients-agents: $(VENV)/.test-$(SETUP_ID) .venv-clients/.made-$(CLIENTS_ID) build/agents/.made-$(AGENTS_ID)  ## coding agents against a server, each at a small task: ARGS=codex
	$(BIN)/python -m tests.clients.run $(or $(ARGS),agents)

clients-replayed: $(VENV)/.test-$(SETUP_ID) .venv-clients/.made-$(CLIENTS_ID)  ## frameworks' runs, recorded and replayed: the same bytes
	$(BIN)/python -m tests.clients.replayed $(ARGS)

clients-lock: .venv-clients/uv  ## the versions that make clients tries: the newest that go together, each client by itself
	@for file in tests/clients/requirements/*.in tests/clients/requirements/agents/*.in; do $(CLIENTS_UV) pip compile --quiet --upgrade --python-version 3.11 \
		--no-annotate --no-emit-index-url --custom-compile-command 'make clients-lock' $$file --output-file $${file%.in}.txt; done
	for folder in node requirements/agents; do \
		(cd tests/clients/$$folder && npm install --package-lock-only --no-audit --no-fund --loglevel error) || exit 1; done

bench: $(VENV)/.test-$(SETUP_ID)  ## speed, as shares of the machine's limits
	$(BIN)/python benchmarks/roofline.py
	$(BIN)/python benchmarks/step.py

docs-curves: setup      ## the tables and charts of docs/placement-physics.md
	$(BIN)/python benchmarks/placement_curves.py
	$(BIN)/python benchmarks/prediction_table.py

wheel: setup            ## a wheel with all tables of kernels, in dist/
	COREPIPE_TABLES=all $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

clean:
	rm -rf build dist .venv .venv-parity .venv-clients .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/.setup-$(SETUP_ID):
	$(call SET_UP,run $(WITH_MODEL),setup)

$(VENV)/.test-$(SETUP_ID):
	$(call SET_UP,run test,setup test)

$(VENV)/.lint-$(SETUP_ID):
	$(call SET_UP,run test lint,setup test lint)

$(VENV)/.sanitize-$(SETUP_ID):
	$(call SET_UP,run test --builders,setup test sanitize)

$(VENV)/.all-$(SETUP_ID):
	$(call SET_UP,run test lint --builders,setup test lint sanitize all)

$(VENV)/.fleet-$(SETUP_ID): $(VENV)/.test-$(SETUP_ID)
	$(PIP_INSTALL) 'corepipe[ray]'
	@rm -f $(VENV)/.fleet-*; touch $@

$(VENV)/.fuzz-$(SETUP_ID): $(VENV)/.setup-$(SETUP_ID)
	$(PIP_INSTALL) 'corepipe[fuzz]'
	@rm -f $(VENV)/.fuzz-*; touch $@

$(VENV)/.planted-$(SETUP_ID): $(VENV)/.sanitize-$(SETUP_ID)
	$(PIP_INSTALL) 'corepipe[planted]'
	@rm -f $(VENV)/.planted-*; touch $@

$(VENV)/.release-$(SETUP_ID): $(VENV)/.setup-$(SETUP_ID)
	$(PIP_INSTALL) 'corepipe[release]'
	@rm -f $(VENV)/.release-*; touch $@

.venv-parity/.parity-$(SETUP_ID): $(VENV)/.setup-$(SETUP_ID) | .venv-parity/.over-venv
	.venv-parity/bin/python -m pip install --quiet --disable-pip-version-check 'corepipe[parity,test]'
	@rm -f .venv-parity/.parity-*; touch $@

# It sees what $(VENV) has, so that the kernels are built once; torch stays out of that.
.venv-parity/.over-venv: $(VENV)/.setup-$(SETUP_ID)
	$(PYTHON) -m venv --clear .venv-parity
	@echo "import site; site.addsitedir('$$($(BIN)/python -c $(SITE_PACKAGES))')" \
		> "$$(.venv-parity/bin/python -c $(SITE_PACKAGES))/over_venv.pth"
	@touch $@

# An environment for each client, since they pin each other's parts; without node its clients are told as not run.
.venv-clients/.made-$(CLIENTS_ID): | .venv-clients/uv
	@for file in tests/clients/requirements/*.txt; do \
		made=.venv-clients/$$(basename $$file .txt); \
		$(CLIENTS_UV) venv --quiet --clear --python $(PYTHON) $$made && \
		$(CLIENTS_UV) pip install --quiet --python $$made --requirement $$file || exit 1; done
	@mkdir -p build/clients && cp tests/clients/node/package*.json build/clients/
	@if command -v npm >/dev/null; then cd build/clients && npm ci --no-audit --no-fund --loglevel error; fi
	@rm -f .venv-clients/.made-*; touch $@

# 2 GB. Not `npm ci`, which wants parts for other platforms in the lock that a registry may lack.
build/agents/.made-$(AGENTS_ID): | .venv-clients/uv
	@mkdir -p build/agents && cp tests/clients/requirements/agents/package*.json build/agents/
	@cd build/agents && npm install --no-audit --no-fund --loglevel error
	@$(CLIENTS_UV) venv --quiet --clear --python $(PYTHON) build/agents/aider
	@$(CLIENTS_UV) pip install --quiet --python build/agents/aider --requirement tests/clients/requirements/agents/aider.txt
	@rm -f build/agents/.made-*; touch $@

.venv-clients/uv:
	$(PYTHON) -m venv $@
	$@/bin/python -m pip install --quiet --disable-pip-version-check uv

.PHONY: image image-check chart-check

# Any builder that takes a Dockerfile: make image BUILDER='buildah bud --format docker'
BUILDER ?= docker build
IMAGE ?= corepipe:$(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)

image:                  ## the server's image, with the default model in it
	$(BUILDER) --build-arg WITH_MODEL=1 --tag $(IMAGE) $(ARGS) .

image-check: $(VENV)/.test-$(SETUP_ID)  ## builds the image and runs it, hardened, without a container engine (as root)
	$(BIN)/python -m tests.deploy.image_check $(ARGS)

chart-check: $(VENV)/.test-$(SETUP_ID)  ## the chart and the Dockerfile, with Helm, schemas and scanners
	$(BIN)/python -m pytest tests/deploy -m 'slow or not slow' $(ARGS)
