# Everything a learner, an instructor or a maintainer types. `make help` lists it.

BIN := .venv/bin
BUILD := $(CURDIR)/build
REPEATS ?= 5
IN_LANES := -n 2 --dist loadscope --no-loadscope-reorder
# Settings of another Python, which would keep the ones below from starting or hand them the other's packages.
unexport PYTHONHOME PYTHONPATH PYTHONUSERBASE
export PYTHONNOUSERSITE := 1
# Any Python can run the set-up, which has uv look for the right one. Where there's no Python at all, uv brings one. With
# -S it looks at no packages, so it's quiet where it belongs to a .venv that is damaged or about to be made anew.
ANY_PYTHON = $(or $(shell command -v python3 || command -v python3.13 || command -v python3.12 || command -v python3.11),$(PYTHON),\
	$(if $(shell command -v uv),uv run --no-project --python 3.11 -- python,$(error Python 3 or uv is needed, and neither is on PATH)))
# Jupyter, IPython and matplotlib keep their settings in the checkout, not in the home folder.
export IPYTHONDIR := $(BUILD)/ipython
export JUPYTER_CONFIG_DIR := $(BUILD)/jupyter/config
export JUPYTER_DATA_DIR := $(BUILD)/jupyter/data
export JUPYTER_RUNTIME_DIR := $(BUILD)/jupyter/runtime
export MPLCONFIGDIR := $(BUILD)/matplotlib

.PHONY: help setup extras lab test test-full test-all demo sweep large-batch large-batch-search large-batch-solution large-batch-recipes figures lock notebooks run-notebooks gallery book book-packages book-check bench gpu-check clean distclean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install everything into .venv (MPI=system, TORCH_INDEX=cu126, PYTHON=...: see book/setup.md)
	@$(ANY_PYTHON) -S tools/bootstrap.py

extras: ## install DeepSpeed, TensorFlow and Horovod again, after it failed (exit code 1 if one fails again)
	@$(ANY_PYTHON) -S tools/bootstrap.py --extras-again

# What the workshop wants of JupyterLab: where it opens, no pop-up, text sizes; and its kernel.json. With PYTHONPATH,
# kernels take the library of this checkout even if .venv is a link to another one's.
lab: export JUPYTER_CONFIG_PATH = $(CURDIR)/workshop_lib/notebook/jupyter
lab: export JUPYTER_PATH = $(CURDIR)/workshop_lib/notebook/jupyter
lab: ## open JupyterLab on the first notebook (NOTEBOOK=...); DeepSpeed and Horovod may follow in the background
	@$(ANY_PYTHON) -S tools/bootstrap.py --extras-later
	@PYTHONPATH="$(CURDIR)" $(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) \
		$(if $(NOTEBOOK),--LabApp.default_url=/lab/tree/$(patsubst notebooks/%,%,$(NOTEBOOK)))

test: setup ## run the tests of what everyone depends on (LESSON=06: of one lesson)
	@$(BIN)/python -m pytest $(IN_LANES) $(if $(LESSON),--lesson $(LESSON) -m "not exhaustive",--tier core)

test-full: setup book-packages ## run the tests of every other promise, once (about 20 minutes on two quiet cores)
	@$(BIN)/python -m pytest $(IN_LANES) --tier full

test-all: export WORKSHOP_FAULT_REPEATS = 3
test-all: setup book-packages ## run the tests with all that is exhaustive: faults three times, every notebook in both versions (takes long)
	@$(BIN)/python -m pytest $(IN_LANES)

# Three short epochs per run: the first one, which pays for start-up, does not count in samples/s. In so few steps the
# warm-up takes half of the way: two ranks that get to the full rate sooner do not learn.
demo: setup ## train for real with every backend on 1 and 2 ranks: table and curves (under 4 minutes on two cores)
	@rm -f $(BUILD)/demo.jsonl
	@$(BIN)/python -m workshop_lib sweep --ranks 1,2 --brief --epochs 3 --train-samples 7680 \
		--warmup-epochs 1.5 --out $(BUILD)/demo.jsonl
	@$(BIN)/python -m workshop_lib plot $(BUILD)/demo.jsonl --out-dir $(BUILD)

sweep: setup ## the demo with all of MNIST and repeats, as in assets/results/demo.jsonl (REPEATS=5: an hour on two cores)
	@rm -f $(BUILD)/sweep.jsonl
	@$(BIN)/python -m workshop_lib sweep --ranks 1,2 --repeats $(REPEATS) --out $(BUILD)/sweep.jsonl
	@$(BIN)/python -m workshop_lib plot $(BUILD)/sweep.jsonl --out-dir $(BUILD)

# Accuracy does not depend on what else runs: a job a recipe, and `make -j2 large-batch` uses two cores.
SEEDS ?= 1 2 3
AS_PUBLISHED = --optimizer sgd --momentum 0.5 --no-nesterov --lr 0.01 --decay none
large-batch-linear: RECIPE = $(AS_PUBLISHED) --lr-scaling linear --warmup-epochs 0
large-batch-warmup: RECIPE = $(AS_PUBLISHED) --lr-scaling linear --warmup-epochs 5
large-batch-sqrt: RECIPE = $(AS_PUBLISHED) --lr-scaling sqrt --warmup-epochs 0
large-batch-lars: RECIPE = --optimizer lars --lr 1.75 --lr-scaling sqrt --warmup-epochs 5 --decay polynomial

large-batch: large-batch-linear large-batch-warmup large-batch-sqrt large-batch-lars ## accuracy against 1 to 256 emulated workers (with -j2; two hours and a half)
	@$(BIN)/python -m workshop_lib plot $(patsubst large-batch-%,$(BUILD)/large_batch_%.jsonl,$^) --out-dir $(BUILD)

large-batch-%: setup
	@rm -f $(BUILD)/large_batch_$*.jsonl
	@for seed in $(SEEDS); do \
		$(BIN)/python -m workshop_lib sweep --ranks 1 --backends mpi --network classic --epochs 32 --seed $$seed \
			--emulate-workers 1,4,8,16,32,64,128,256 $(RECIPE) --out $(BUILD)/large_batch_$*.jsonl || exit 1; done

# The search for a rate with which 128 workers train: four or five peak rates for each optimizer, all else alike.
search-sgd: RATES = 0.1 0.2 0.4 0.8
search-lars: RATES = 5 10 20 40 80
search-lamb: RATES = 0.01 0.02 0.04 0.08
search-adam: RATES = 0.005 0.01 0.02 0.04 0.08
# The best of these rates, with two more seeds.
search-sgd: BEST = 0.2 0.4
search-lars: BEST = 20
search-lamb: BEST = 0.04
search-adam: BEST = 0.04

large-batch-search: search-sgd search-adam search-lars search-lamb ## peak rates for 128 workers, four optimizers (with -j2: 40 minutes)

large-batch-solution: setup ## the recipe with which 128 workers train in notebook 07, three seeds (8 minutes of one core)
	@rm -f $(BUILD)/large_batch_solution.jsonl
	@for seed in $(SEEDS); do \
		$(BIN)/python -m workshop_lib train --ranks 1 --network classic --epochs 32 --emulate-workers 128 --warmup-epochs 5 \
			--decay polynomial --lr 0.2 --seed $$seed --out $(BUILD)/large_batch_solution.jsonl || exit 1; done

large-batch-recipes: setup ## optimizers, decay, momentum, Muon and a growing batch, side by side (5 minutes of one core)
	@rm -f $(BUILD)/large_batch_recipes.jsonl
	@PYTHONPATH=notebooks $(BIN)/python -m lessons.large_batch.recipes --seeds $(SEEDS) --out $(BUILD)/large_batch_recipes.jsonl

search-%: setup
	@rm -f $(BUILD)/search_$*.jsonl
	@for lr_and_seed in $(RATES:=:1) $(BEST:=:2) $(BEST:=:3); do \
		$(BIN)/python -m workshop_lib train --ranks 1 --network classic --epochs 32 --emulate-workers 128 --warmup-epochs 5 \
			--decay polynomial --optimizer $* --lr $${lr_and_seed%:*} --seed $${lr_and_seed#*:} \
			--out $(BUILD)/search_$*.jsonl || exit 1; done

figures: setup ## draw assets/figures from the records in assets/results
	@for name in demo emulated large_batch; do \
		$(BIN)/python -m workshop_lib plot assets/results/$$name.jsonl --out-dir assets/figures/$$name; done
	@PYTHONPATH=notebooks $(BIN)/python -m lessons.gradient_noise.figures assets/results/steps_to_target.jsonl \
		assets/figures/steps_to_target/steps_to_target.png

notebooks: setup ## write the notebooks from notebooks/source
	@$(BIN)/python -m workshop_lib.classroom.generate

run-notebooks: setup ## execute all notebooks, learner's and solutions, to build/notebooks
	@$(BIN)/python -m workshop_lib.classroom.execute

gallery: setup ## execute all solutions and keep their outputs, for the book too, in assets/gallery (NAME="05 08": of some)
	@$(BIN)/python -m tools.gallery $(NAME)

# Sphinx and its parts are for the book alone, so they come with the first one and not with `make setup`. Where they can't
# be had, `make test-full` skips what needs them.
book-packages: setup
	-@$(ANY_PYTHON) -S tools/bootstrap.py --book

book: book-packages ## write the workshop as a site that needs no server, with the gallery's outputs: build/book/html
	@$(BIN)/python -m tools.book

book-check: book ## look at every page of the book in a browser: links, texts for figures, contrast, errors
	@$(BIN)/python -m pytest tests/browser/test_site.py

bench: setup ## measure throughput, start-up and emulated ranks, to build/bench.jsonl (takes long; NAME=start: one of it)
	@$(BIN)/python tests/benchmarks/run.py $(NAME)

gpu-check: ## try every backend and script on this host's GPUs; needs PyTorch, no set-up (PYTHON=...; record in build/gpu-check.jsonl)
	@$(or $(PYTHON),$(wildcard $(BIN)/python),python3) -m tools.gpu_check

lock: ## write down the exact versions of all packages after a change of pyproject.toml (UPGRADE=1: the newest ones)
	@$(BIN)/python -m tools.lock $(if $(UPGRADE),--upgrade)

clean: ## remove what was built and measured, keep .venv
	@rm -rf build .pytest_cache .ruff_cache .mypy_cache *.egg-info
	@find . -path ./.venv -prune -o -name __pycache__ -exec rm -rf {} +

distclean: clean ## remove .venv too
	@rm -rf .venv .uv
