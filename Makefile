# Two commands to know: `make demo` (a first look, minutes) and `make test`. Both make their own .venv.
PYTHON ?= python3
BIN := .venv/bin
# what is never imported, most of it, needs no bytecode; Python makes the rest when it is imported
PIP := $(BIN)/pip install --quiet --no-compile -c constraints.txt
# One thread a worker, also after Numba, which sets its number for torch too: two workers with two threads each would
# wait for each other on two cores. A worker that is done takes tests of the other, mostly whole files. Bytecode is kept,
# also that of tests: many processes read it.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: demo test test-core test-gpu check venv docs bench bench-cpu bench-gpu bench-all results transfer paper clean
.PHONY: fuzz fuzz-gpu fuzz-asan sbom lock wheels matrix gallery
COUNT ?= 5000
SEED ?= 0
JOBS ?= 4

demo: .venv/.demo   ## train five models on handwritten digits, print the table, write demo-out/report.html
	$(BIN)/dynamicgate compare --data digits --models dense,small,gate,rigl,gate+rigl --budget 0.3 --seeds 3 --out demo-out

test: check         ## everything: style, types, layers, all tests
	$(PYTEST)

test-core: check    ## the library without lab and experiments, and without slow tests
	$(PYTEST) -m "not slow" --ignore tests/lab --ignore tests/experiments

test-gpu: venv      ## the GPU tests; writes tests/gpu_last_run.json if all pass
	$(BIN)/python -m tests.gpu_record

fuzz: venv          ## changed files, random chains and models, kills, threads; writes tests/fuzz/last_run.json; an hour or more
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz --count $(COUNT) --seed $(SEED) --record
	$(BIN)/python -m tests.fuzz.chains --count $$((4 * $(COUNT))) --seed $(SEED) --record
	$(BIN)/python -m tests.fuzz.decoders --count $$(($(COUNT) * 2 / 5)) --seed $(SEED) --record
	$(BIN)/python -m tests.fuzz.models --count $$(($(COUNT) * 3 / 5)) --seed $(SEED) --record
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz.kills --count $$(($(COUNT) / 25)) --seed $(SEED) --record
	$(BIN)/python -m tests.fuzz.threads --record
	$(PYTEST) --hypothesis-profile many tests/ops/test_chain.py tests/sparsity/test_exactness.py

fuzz-gpu: venv      ## random layers and models on a CUDA GPU, the kernels also under compute-sanitizer; minutes
	$(BIN)/python -m tests.fuzz.gpu --count $$(($(COUNT) * 2 / 5)) --seed $(SEED) --jobs $(JOBS) --record
	$(BIN)/python -m tests.fuzz.gpu --sanitized --count $$(($(COUNT) / 125)) --seed $(SEED) --record

fuzz-asan: venv     ## the plan files again, with kernels built with the address and undefined behaviour sanitizers
	$(BIN)/python -m tests.fuzz.asan --count $(COUNT) --seed $(SEED) --record

sbom: venv          ## sbom.json: a software bill of materials of what is installed (CycloneDX)
	$(BIN)/python -m tools.sbom sbom.json

lock: venv          ## requirements.lock anew, from constraints.txt and the package index
	$(BIN)/python -m tools.lock

wheels: .venv/bin/pip ## dist/: the source and wheels for Linux on x86-64 and aarch64, one for all Pythons from 3.10 on
	$(BIN)/pip install --quiet build wheel 'setuptools>=77' ziglang
	$(BIN)/python -m tools.wheels

matrix: .venv/bin/pip ## install the wheel of this machine with every Python from 3.10 to 3.13 that is found, and use it
	$(BIN)/python -m tools.matrix

gallery: venv       ## the pages of docs/gallery, from the scripts in examples/gallery
	$(BIN)/python -m tools.gallery

check: venv         ## ruff, mypy, import-linter
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

venv: .venv/.dev    ## .venv with everything the tests need

docs: .venv/.docs   ## the site, in site/
	$(BIN)/mkdocs build --strict

bench: venv         ## cost of a training step with gates and with a sparsifier, in benchmarks/results/
	$(BIN)/python benchmarks/training_step.py
	$(BIN)/python benchmarks/sparsifier_step.py

bench-cpu: venv     ## compiled plans against dense networks, in benchmarks/results/
	$(BIN)/python benchmarks/cpu.py

bench-gpu: venv     ## gated layers on a CUDA GPU against dense ones, in benchmarks/results/
	$(BIN)/python benchmarks/gpu.py --part forward,backward,decode,plan

bench-all: venv     ## all benchmarks that this machine can run, one after the other, and the tables of the pages
	$(BIN)/python benchmarks/run_all.py

results: venv       ## train what is missing for the tables of docs/sparsity.md (MNIST from the folder in DYNAMICGATE_DATA)
	$(BIN)/python -m experiments.sparse_mnist

transfer: venv      ## a budget and nothing else on data that nobody tuned on, and docs/transfer.md
	$(BIN)/python -m experiments.transfer

paper: venv         ## every table of the paper and docs/paper.md (hours on a CPU; finished runs are found)
	$(BIN)/python -m experiments.paper all

clean:
	rm -rf .venv demo-out site build dist .pytest_cache .mypy_cache .ruff_cache src/dynamicgate/ops/*.so

.venv/bin/pip:
	$(PYTHON) -m venv .venv

.venv/.demo: pyproject.toml constraints.txt setup.py $(wildcard csrc/*) | .venv/bin/pip
	$(PIP) -e '.[cli,report,sklearn]'
	@touch $@

# With LOCK=1 only files whose checksums are in requirements.lock, for the Python that is named there.
.venv/.dev: pyproject.toml constraints.txt setup.py $(wildcard csrc/*) | .venv/bin/pip
ifdef LOCK
	$(BIN)/pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
else
	$(PIP) -e '.[dev]'
endif
	@touch $@ .venv/.demo

.venv/.docs: pyproject.toml constraints.txt .venv/.dev
	$(PIP) -e '.[docs]'
	@touch $@
