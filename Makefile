# Everything from a bare machine with Python 3.11+ and git: `make setup`, `make run`, `make test`.
#   EXTRA=cpu     faiss for the CPU (default) | gpu: faiss for CUDA 12 (Linux, x86-64). PyTorch itself uses a GPU either way.
#   ARGS='-k NAME'  arguments for pytest (make test)
#   PYTHON=...    the interpreter to build .venv with; default: the first of python3, python3.14 ... that is 3.11 to 3.14
# A smaller, CPU-only PyTorch where pip would take the CUDA build: set pip's own PIP_EXTRA_INDEX_URL (docs/machine.md).
EXTRA ?= cpu
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; v = sys.version_info; sys.exit(not (3, 11) <= v < (3, 15) or v[:3] == (3, 14, 1))' 2>/dev/null && { echo $$p; break; }; done)
BIN := .venv/bin
# Test files run beside one another, in the order of tests/conftest.py; each file in one process.
# A test process that dies ends there and names its test: xdist would wait for ever for the tests of one that it replaced.
BESIDE := --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder --max-worker-restart 0
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
MADE_OF := pyproject.toml constraints.txt
# Both packages of faiss write into one folder: the other one goes first, and its set-up is then no longer ready.
ifeq ($(EXTRA),gpu)
OTHER := -q -y faiss-cpu faiss-gpu-cu12 2>/dev/null && rm -f .venv/.ready-cpu*
else
OTHER := -q -y faiss-gpu faiss-gpu-cu12 2>/dev/null && rm -f .venv/.ready-gpu*
endif

export PIP_REQUIRE_VIRTUALENV = 1
# mwparserfromhell has no wheel for Python 3.14: without a C compiler it is built in Python alone, which takes longer.
export WITH_EXTENSION ?= optional

.PHONY: setup run test test-heavy check help clean
help:
	@echo 'make setup  make .venv and install what is missing in it'
	@echo 'make run    set up what is missing, then run the pipeline'
	@echo 'make test   set up what is missing, then run the tests'
	@echo 'make test-heavy  many clones, real servers and schedules: an hour or more'
	@echo 'make check  ruff, mypy, import-linter'
	@echo 'make clean  remove the environment (.venv); data and caches stay'

setup: .venv/.ready-$(EXTRA)

run: setup
	$(BIN)/retemper run

test: .venv/.ready-$(EXTRA)-dev
	$(BIN)/python -m pytest $(BESIDE) $(ARGS)

test-heavy: .venv/.ready-$(EXTRA)-dev
	$(BIN)/python -m pytest -m heavy $(ARGS)

check: .venv/.ready-$(EXTRA)-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf .venv

.venv/.made:
	@test -n '$(PYTHON)' || { echo 'retemper: no Python 3.11 to 3.14 found (3.14.1 apart, which networkx refuses); install one, or name it: make PYTHON=/path/to/python3' >&2; exit 2; }
	@$(PYTHON) -m venv .venv || { rm -rf .venv; \
		echo 'retemper: $(PYTHON) -m venv failed; install the venv package of your system (Debian, Ubuntu: python3-venv)' >&2; exit 2; }
	@touch $@

# The development set-up holds everything that the other one does, so `make run` after `make test` installs nothing.
.venv/.ready-$(EXTRA): $(MADE_OF) | .venv/.made
	@echo 'Setting up .venv: some minutes, 2.8 GB with a CPU build of PyTorch, more with a CUDA build ...'
	@$(PIP) uninstall $(OTHER)
	@$(PIP) install -q -c constraints.txt -e '.[$(EXTRA),demo]'
	@touch $@

.venv/.ready-$(EXTRA)-dev: $(MADE_OF) | .venv/.made
	@echo 'Setting up .venv: some minutes, 2.8 GB with a CPU build of PyTorch, more with a CUDA build ...'
	@$(PIP) uninstall $(OTHER)
	@$(PIP) install -q -c constraints.txt -e '.[$(EXTRA),demo,dev]'
	@touch $@ .venv/.ready-$(EXTRA)
