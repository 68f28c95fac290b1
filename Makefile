# `make reproduce` and `make test` need Python ≥ 3.11 and nothing else: both build .venv from pyproject.toml.
PYTHON ?= python3
BIN := .venv/bin
# Tests start many processes; each would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: reproduce full test lint types bench faults docs check-docs dist check-dist setup clean

reproduce: .venv/usable
	TWOCLOCK_AGAIN="make $@" $(BIN)/python -m reproduction --quick
	@echo "That was the quick run. The full one, some 40 minutes on two cores: make full"

full: .venv/complete
	TWOCLOCK_AGAIN="make $@" $(BIN)/python -m reproduction

test: setup lint types
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python .ci/check_prose

types: setup
	$(BIN)/mypy

# One table per question, printed and stored in docs/bench, from which README and docs/speed.md quote: some ten minutes on two quiet cores.
bench: setup
	for bench in 'first_call.py 2' scan.py 'engine.py --repeats 3' core.py live.py policy_evaluation.py lqr.py entropy_mdp.py bilevel.py 'sweep.py 4000'; do PYTHONPATH=. $(BIN)/python bench/$$bench || exit 1; done
	$(BIN)/python -m docs.quoted --bench
	TWOCLOCK_LARGE=1 $(BIN)/python -m pytest tests/models/test_sparse_mdp.py -k in_proportion

# Faults tried on purpose, docs/faults.md. `make faults SCALE=0.1` tries a tenth of them.
SCALE ?= 1
faults: setup
	$(BIN)/python -m faults --scale $(SCALE) $(if $(filter 1,$(SCALE)),--write)

# The site: tutorials and doctests are run, a warning is an error. All pages are written (-a), or the search loses entries. `make check-docs` then looks at it in a browser.
docs: .venv/documented
	TWOCLOCK_ALL_SNIPPETS=1 $(BIN)/python -m pytest src tests/docs/test_snippets.py
	$(BIN)/python -m sphinx -W --keep-going -a -b html docs docs/_build/html
	@echo "Open docs/_build/html/index.html"

check-docs: docs
	$(BIN)/python docs/check_site.py docs/_build/html

# A wheel and a source archive, as a release would publish them.
dist: setup
	rm -rf dist
	$(BIN)/python -m pip install --quiet --group release
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m twine check --strict dist/*

# The wheel in clean environments, for each Python that is here, with the oldest and the newest JAX.
PYTHONS ?= python3.11 python3.12 python3.13
check-dist: dist
	.ci/try_wheel dist/*.whl $(PYTHONS)

setup: .venv/ready

# What the quick run needs comes first and is enough for `make reproduce`; the rest is for the full run, tests and tools.
# Nothing is compiled to bytecode that nobody imports.
# pip takes half a package that it was stopped in for a whole one. So .venv has the file `unfinished` while pip is at
# work, and a set-up that finds it begins again from nothing.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile

.venv/usable: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("twoclock needs Python 3.11 or newer, this is " + sys.version) if sys.version_info < (3, 11) else 0'
	if [ -e .venv/unfinished ]; then rm -rf .venv; fi
	mkdir -p .venv && touch .venv/unfinished
	$(PYTHON) -m venv .venv
	$(INSTALL) --editable . 'gymnasium>=1.0'
	mv .venv/unfinished $@

.venv/complete: .venv/usable
	mv .venv/usable .venv/unfinished
	$(INSTALL) --editable '.[examples]'
	mv .venv/unfinished .venv/usable
	touch $@

.venv/ready: .venv/complete
	mv .venv/usable .venv/unfinished
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[examples,minari,ray]' --group dev
	mv .venv/unfinished .venv/usable
	touch $@

.venv/documented: .venv/ready
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	touch $@

clean:
	rm -rf .venv results runs docs/_build docs/api
