# make demo | test | test-all | test-lowest | coverage | bench | accelerators | docs | notebooks | lint | format | dist | clean. Each sets up the virtual environment it needs.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
RUN    ?= runs/demo
# What the lowest versions must pass: every room, and a run from the command line to its report.
LOWEST_TESTS ?= tests/config tests/data tests/storage tests/report tests/core/test_round.py tests/models \
	tests/runner/test_start.py tests/runner/test_program_cache.py tests/test_api.py
# Whose compilers for accelerators are tried.
ACCELERATORS_JAX ?= 0.10.2

.PHONY: demo test test-all test-lowest coverage bench accelerators docs notebooks lint format dist clean

$(VENV)/.user: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable .
	touch $@

$(VENV)/.dev: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@ $(VENV)/.user

## The labeled client alone (fedavg, the lower bound), RSCFed, and SemiFL, which leads the comparison of all methods on
## these data (docs/results.md). With one local epoch for all, so that a warm-up gives all the same model to start from.
demo: $(VENV)/.user
	rm -rf $(RUN)
	$(BIN)/rscfed-jax grid --dataset fashion --set method=fedavg,rscfed,semifl --train-fraction 0.5 --local-epochs 1 --warmup-rounds 60 --rounds 12 --eval-every 2 --seeds 2 --out $(RUN)
	$(BIN)/rscfed-jax report $(RUN)

## The test suite that decides whether a change lands.
test: $(VENV)/.dev
	$(BIN)/python -m pytest -q -n auto --dist loadfile

## Also the slow tests.
test-all: $(VENV)/.dev
	$(BIN)/python -m pytest -q -n auto --dist loadfile -m 'slow or not slow'

## A quick part of the suite with the lowest versions that pyproject.toml allows, in an environment of its own.
test-lowest:
	$(PYTHON) -m venv $(VENV)-lowest
	$(VENV)-lowest/bin/pip install --quiet uv
	$(VENV)-lowest/bin/uv pip compile --quiet --resolution lowest-direct --python $(VENV)-lowest/bin/python \
		--output-file $(VENV)-lowest/lowest.txt pyproject.toml
	$(VENV)-lowest/bin/pip install --quiet --requirement $(VENV)-lowest/lowest.txt pytest hypothesis scipy
	$(VENV)-lowest/bin/pip install --quiet --no-deps --editable .
	$(VENV)-lowest/bin/python -m pytest -q -W default $(LOWEST_TESTS)

## Which lines and branches the tests of `make test` reach.
coverage: $(VENV)/.dev
	$(BIN)/python -m pytest -q -n auto --dist loadfile --cov --cov-report=term

## The benchmarks that need no data set; their results are kept under benchmarks/results, the first only with PyTorch.
bench: $(VENV)/.dev
	for name in round_time scaling ragged startup devices forms grid attack; do $(BIN)/python benchmarks/$$name.py || exit 1; done

## Compiles the rounds that users run for TPUs and GPUs that need not be here: two environments of 1.6 and 5.8 GB, an hour.
accelerators:
	$(PYTHON) -m venv $(VENV)-tpu
	$(VENV)-tpu/bin/pip install --quiet 'jax[tpu]==$(ACCELERATORS_JAX)' --editable .
	for target in v5e v2; do $(VENV)-tpu/bin/python benchmarks/accelerators.py --target $$target || exit 1; done
	$(PYTHON) -m venv $(VENV)-cuda
	$(VENV)-cuda/bin/pip install --quiet 'jax[cuda12]==$(ACCELERATORS_JAX)' --editable .
	for target in a100 t4 h100; do $(VENV)-cuda/bin/python benchmarks/accelerators.py --target $$target || exit 1; done

$(VENV)/.docs: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[docs]'
	touch $@ $(VENV)/.user

## The pages of docs/ as HTML in docs/_build; a warning is an error.
docs: $(VENV)/.docs
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet docs docs/_build

## Run the notebooks from top to bottom and keep what they show.
notebooks: $(VENV)/.dev
	$(BIN)/python notebooks/refresh.py --execute

## Style and types.
lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

## The distributions as they would be published, in dist/.
dist: $(VENV)/.dev
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

clean:
	rm -rf $(VENV) $(VENV)-lowest $(VENV)-tpu $(VENV)-cuda build dist docs/_build docs/api.rst docs/_settings.md .pytest_cache .ruff_cache .mypy_cache .hypothesis .coverage
