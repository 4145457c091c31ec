# make demo | make test need nothing but Python 3.11 or newer; the environment in .venv is made on the way.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(if $(shell command -v uv),uv pip install --quiet --python $(BIN)/python,$(BIN)/python -m pip install --quiet)

.PHONY: demo test check protos bench clean

demo: $(VENV)/demo
	$(BIN)/fedboost demo

test: $(VENV)/dev
	$(BIN)/pytest

check: $(VENV)/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -m "not slow"

protos: $(VENV)/dev
	$(BIN)/python -m grpc_tools.protoc -Iprotos --python_out=. --pyi_out=. protos/fedboost/wire/v1/fedboost.proto

# DATA=folder with the real tables that accuracy and wire measure on; see benchmarks/README.md
bench: $(VENV)/dev
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/masked.py
	$(if $(DATA),$(BIN)/python benchmarks/accuracy.py --data $(DATA))
	$(if $(DATA),$(BIN)/python benchmarks/wire.py --data $(DATA))

$(VENV)/made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "fedboost needs Python 3.11 or newer; $(PYTHON) is older: make PYTHON=python3.12 ..."; exit 2; }
	$(if $(shell command -v uv),uv venv --quiet --python $(PYTHON) $(VENV),$(PYTHON) -m venv $(VENV))
	@touch $@

$(VENV)/demo: $(VENV)/made pyproject.toml
	$(INSTALL) --editable '.[demo]'
	@touch $@

$(VENV)/dev: $(VENV)/made pyproject.toml
	$(INSTALL) --editable '.[demo,dev]'
	@touch $@ $(VENV)/demo

clean:
	rm -rf $(VENV) fedboost-demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
