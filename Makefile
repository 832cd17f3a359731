# make run | test | check | bench | accuracy: each sets up what it needs; a second call takes seconds.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PORT ?= 8501
STAMP := $(VENV)/.stamp-run
TEST_STAMP := $(VENV)/.stamp-test

.PHONY: run test check bench accuracy format clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(TEST_STAMP): pyproject.toml constraints.txt $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[test,dev]"
	touch $@

run: $(STAMP)
	$(BIN)/python -m streamlit run app.py --server.port $(PORT)

test: $(TEST_STAMP)
	sh tests/system_packages.sh
	$(BIN)/python -m pytest -n 2 --dist loadfile

check: $(TEST_STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(TEST_STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(TEST_STAMP)
	$(BIN)/python -m benchmarks.bench

accuracy: $(TEST_STAMP)
	$(BIN)/python -m benchmarks.accuracy

clean:
	rm -rf $(VENV) build *.egg-info
