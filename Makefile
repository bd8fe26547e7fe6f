# `make train` and `make test` need Python 3.11 or newer and pip, nothing else; they install into .venv once.
PYTHON ?= python3
VENV := .venv
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check
# Test files that run side by side, each in one process.
JOBS ?= 2
PYTEST_ARGS ?=
# What is checked and formatted.
ROOMS := rl model rollout environments rewards kernels

.PHONY: train test test-all lint lock

train: $(VENV)/.base
	$(VENV)/bin/jointrl train $(ARGS)

test: $(VENV)/.full .venv-games/.ready lint
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -n $(JOBS) --dist loadfile --cov --cov-report=term --cov-fail-under=85 $(PYTEST_ARGS)

# With the slow tests too: every environment's gate, every kind of model through vLLM, longer runs.
test-all:
	$(MAKE) test PYTEST_ARGS="-m '' $(PYTEST_ARGS)"

lint: $(VENV)/.full
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy $(ROOMS)

# The interpreter of the games that other packages bring: 21 wheels, some 10 s of processor time, once.
.venv-games/.ready: requirements/games.lock | $(VENV)/.base
	$(VENV)/bin/jointrl env install games
	@touch $@

# The locks anew, from what is installed in .venv: after an upgrade that was tested.
lock: $(VENV)/.full
	$(VENV)/bin/python requirements/lock.py

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "jointrl needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

# A CPU build of torch where the indexes that pip knows have one (PIP_EXTRA_INDEX_URL adds PyTorch's own), else the
# usual build with what it needs. The lock then finds it in place.
$(VENV)/.torch: requirements/base.lock | $(VENV)/bin/python
	@echo "installing torch into $(VENV) ..."
	@torch=$$(grep '^torch==' requirements/base.lock); \
	  $(PIP) install -qq --no-deps "$$torch+cpu" || $(PIP) install -qq "$$torch"
	@touch $@

$(VENV)/.base: requirements/base.lock pyproject.toml $(VENV)/.torch
	@echo "installing $$(grep -c == requirements/base.lock) pinned packages into $(VENV) (some minutes, once) ..."
	@$(PIP) install -qq --no-deps -r requirements/base.lock
	@$(PIP) install -qq --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.full: requirements/full.lock $(VENV)/.base
	@echo "installing what the tests need, $$(grep -c == requirements/full.lock) packages in all (some minutes, once) ..."
	@$(PIP) install -qq --no-deps -r requirements/full.lock
	@touch $@
