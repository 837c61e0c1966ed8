# `make help` lists the targets. Nothing has to be installed first but Python 3.11 or newer and make.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# The first interpreter that is new enough wins; `make PYTHON=/path/to/python` overrides.
PYTHON ?= $(shell for p in python3.12 python3.11 python3 python3.14 python3.13; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
VENV ?= .venv
HOST ?= 127.0.0.1
PORT ?= 8000
STORE ?= warpplan.sqlite
PYTEST_ARGS ?=
EXAMPLES ?= 5000
LIMIT_S ?= 3600

BIN := $(VENV)/bin
IMPORTS := build/imports
# Tools that read source need the packages under their import names; the folders stand at the root.
ROOMS := planner profiler kernels service
# The releases of Triton that the compiler path supports, each in an environment of its own.
TRITONS := 3.6.0 3.7.1 3.8.0 3.9.0
# Tests of kernels that compile, without a GPU.
COMPILED := tests/kernels/attention_fwd tests/kernels/attention_bwd tests/kernels/attention_decode tests/kernels/gemm \
	tests/kernels/gemm_bias_act tests/kernels/grouped_gemm tests/kernels/test_compile.py \
	tests/kernels/test_bundled_compile.py tests/profiler/test_probes.py tests/test_train_kernels.py -k compile
# Consumers whose readers the feeds were tested with, and the tests that need torch: those, and the example job's.
FEED_WHEELS := triton==3.9.0 fla-core==0.6.0 helion==1.5.1
FEED_TESTS := tests/service/feeds/test_triton_autotune.py tests/service/feeds/test_triton_remote.py \
	tests/service/feeds/inductor tests/service/feeds/fla tests/service/feeds/helion tests/test_train_example.py
# Wheels of programs that read our exports, without what they depend on: their files are run alone.
CONSUMERS := build/feeds/site
MOE_FACTS := service/feeds/moe_facts/data

.PHONY: help run test test-feeds moe-facts docs compile-matrix fuzz golden known-compiles solved-loops lint format profile bench-gemm bench-regret bench-traces bench-report bench-accuracy bench-compiler bench-inductor bench-inductor-table bench-flex corpus bench-corpus gpu bench-launches bench-solver bench-optimality bench-packing bench-planning bench-ablation bench-monotone bench-vector-add bench-kernels bench-gemm-many bench-splits bench-early-launch bench-block bench-clusters bench-power bench-readings bench-tma-fill bench-consumers bench-fla bench-helion bench-moe-samples bench-moe-tables bench-partitions example-moe example-train build clean imports

help:  ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/.core  ## install, plan the bundled shapes, print them, serve on 127.0.0.1:8000
	$(BIN)/warpplan batch bundled --store $(STORE)
	$(BIN)/warpplan serve --store $(STORE) --host $(HOST) --port $(PORT)

test: lint  ## lint, types, import contracts and every test (those that need a GPU skip without one)
	$(BIN)/python -m pytest -q -n 2 $(PYTEST_ARGS)

test-feeds: $(VENV)/.test $(CONSUMERS)/.ready build/torch-feeds/.ready  ## no GPU: the feeds read by their consumers' own readers, the example job, small (1 GB of wheels)
	WARPPLAN_CONSUMERS=$(CONSUMERS) $(BIN)/python -m pytest -q tests/service/feeds $(PYTEST_ARGS)
	build/torch-feeds/bin/python -m pytest -q -p no:cacheprovider $(FEED_TESTS) $(PYTEST_ARGS)

moe-facts: $(VENV)/.test $(CONSUMERS)/.ready  ## no GPU: capture vLLM's and SGLang's kernels and write the facts that ship
	$(BIN)/python -m warpplan.service.feeds.moe_facts.record_facts vllm $(CONSUMERS) $(MOE_FACTS) \
		bfloat16 fp8_w8a8 fp8_w8a8_block int8_w8a16
	$(BIN)/python -m warpplan.service.feeds.moe_facts.record_facts sglang $(CONSUMERS) $(MOE_FACTS) \
		bfloat16 fp8_w8a8 fp8_w8a8_per_channel fp8_w8a8_block int8_w8a8_per_channel int8_w8a8_block int8_w8a16

docs: $(VENV)/.docs  ## the pages under docs/ as HTML in build/docs; a dead link or an unknown name fails
	$(BIN)/python -m sphinx -W -n --keep-going -q -b html docs build/docs
	@echo "open build/docs/index.html"

compile-matrix: $(TRITONS:%=build/triton-%/.ready)  ## compile for sm_90 and sm_100 with every supported Triton, without a GPU
	@for version in $(TRITONS); do \
		echo "triton $$version"; \
		build/triton-$$version/bin/python -m pytest -q -m matrix tests/kernels $(PYTEST_ARGS); \
	done

fuzz: $(VENV)/.test  ## every property on new random examples; solver, checker and simulator on thousands (EXAMPLES=5000)
	HYPOTHESIS_PROFILE=fresh $(BIN)/python -m pytest -q -n 2 -m hypothesis
	HYPOTHESIS_PROFILE=fresh WARPPLAN_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest -q -n 2 tests/planner/search/test_agreement.py

golden: $(VENV)/.test  ## rewrite the recorded plans after a deliberate change of the model or the profile
	UPDATE_GOLDEN=1 $(BIN)/python -m pytest -q tests/kernels/test_golden.py

known-compiles: $(VENV)/.test  ## compile every kernel's whole space and record what came out clean, so that tests need not
	rm -f tests/known_compiles.jsonl
	RECORD_COMPILES=1 $(BIN)/python -m pytest -q -n 2 $(COMPILED)
	sort -u -o tests/known_compiles.jsonl tests/known_compiles.jsonl

solved-loops: $(VENV)/.test  ## solve the embedded profiles' loops and write the file that ships
	$(BIN)/python -m warpplan.profiler.record_loops

lint: $(VENV)/.test imports  ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	MYPYPATH=$(IMPORTS) $(BIN)/mypy -p warpplan.planner -p warpplan.kernels -p warpplan.profiler -p warpplan.service
	PYTHONPATH=$(IMPORTS) $(BIN)/lint-imports

format: $(VENV)/.test  ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

profile: $(VENV)/.gpu  ## measure this GPU's operation costs into profile.json
	$(BIN)/warpplan profile --out profile.json

bench-gemm: $(VENV)/.gpu  ## GPU: chosen plans against cuBLAS, exhaustive search and autotuning
	$(BIN)/python benchmarks/bench_gemm.py --shapes all --out benchmarks/results

bench-regret: $(VENV)/.core  ## no GPU: replay the recorded exhaustive table against today's ranking
	$(BIN)/python benchmarks/regret.py

bench-traces: $(VENV)/.gpu  ## GPU: Proton traces of the real kernels and of compiled ones beside the probes
	$(BIN)/python benchmarks/trace_gemm.py --out benchmarks/results
	$(BIN)/python benchmarks/trace_compiler.py --out benchmarks/results

bench-report: $(VENV)/.core  ## no GPU: the summaries of the recorded results, the README's figures
	$(BIN)/python benchmarks/gemm_report.py
	$(BIN)/python docs/_ext/recorded_figures.py

bench-accuracy: $(VENV)/.gpu  ## GPU: predicted against measured plans and phases, ring depths
	$(BIN)/python benchmarks/robust_depth.py --out benchmarks/results
	$(BIN)/python benchmarks/plan_accuracy.py --out benchmarks/results

bench-compiler: $(VENV)/.gpu  ## GPU: unmodified kernels planned, against themselves unplanned, cuBLAS and cuDNN
	$(BIN)/python benchmarks/bench_compiler.py --planned --out benchmarks/results
	$(BIN)/python benchmarks/stock_failures.py --out benchmarks/results

bench-launches: $(VENV)/.test  ## no GPU: launches without a partition predicted, beside the recorded H200 sweeps
	$(BIN)/python benchmarks/replay_launches.py gemm_grouped_order gemm_2d "attention 4,16,4096,128"

bench-inductor: $(VENV)/.gpu  ## GPU: kernels that torch.compile generates, planned
	$(BIN)/python benchmarks/bench_inductor.py --out benchmarks/results

bench-flex: $(VENV)/.gpu  ## GPU: flex attention by torch.compile, planned
	$(BIN)/python benchmarks/bench_flex.py

bench-inductor-table: $(VENV)/.gpu  ## GPU: the table exported for Inductor, against its own max-autotune
	$(BIN)/python benchmarks/bench_inductor_table.py

corpus: $(VENV)/.test  ## no GPU: what is planned of kernels in the styles of public libraries, why not, and the best of each list
	$(BIN)/python benchmarks/plan_corpus.py
	$(BIN)/python benchmarks/plan_lists.py

bench-corpus: $(VENV)/.gpu  ## GPU: the corpus planned, against itself autotuned and its peers; first launches; a soak
	$(BIN)/python benchmarks/bench_corpus.py
	$(BIN)/python benchmarks/bench_corpus.py --phase first
	$(BIN)/python benchmarks/bench_corpus.py --phase soak

bench-consumers: $(VENV)/.gpu  ## GPU: exported entries of consumers' kernels, against timing their whole lists
	$(BIN)/python benchmarks/bench_consumers.py

bench-fla: $(VENV)/.gpu  ## GPU: the files exported for FLA's kernels, against timing their whole lists
	$(BIN)/python -m pip install --quiet --no-deps --no-compile --upgrade --target build/fla $(filter fla-core%,$(FEED_WHEELS)) einops
	$(BIN)/python benchmarks/bench_fla.py --site build/fla --ranked build/fla_ranked

bench-helion: $(VENV)/.gpu  ## GPU: Helion's entries against its own search; HELION_EXAMPLES=FOLDER of its examples
	$(BIN)/python -m pip install --quiet helion==1.4.0
	rm -rf build/helion_cache
	$(BIN)/warpplan export --target helion --consumer benchmarks/helion_cases.py:calls --out build/helion_cache
	$(BIN)/python benchmarks/bench_helion.py --cache build/helion_cache --search-s 20

bench-moe-samples: $(VENV)/.gpu $(CONSUMERS)/.ready  ## GPU: random configurations of vLLM's fused-MoE kernel on training layers
	$(BIN)/python benchmarks/bench_moe_samples.py --site $(CONSUMERS)

bench-moe-tables: $(VENV)/.gpu $(CONSUMERS)/.ready  ## GPU: predicted fused-MoE tables, against vLLM's defaults and its tuning list
	$(BIN)/python benchmarks/bench_moe_tables.py --site $(CONSUMERS)

gpu: $(VENV)/.gpu  ## GPU: every step of the compiler path, logs and results in build/gpu
	$(BIN)/python benchmarks/compiler_gpu.py --out build/gpu

bench-solver: $(VENV)/.core  ## no GPU: the joint solver, also with costs moved, and classic modulo scheduling, with their peers
	$(BIN)/python benchmarks/bench_solver.py
	$(BIN)/python benchmarks/moved_costs.py
	$(BIN)/python benchmarks/bench_modulo.py

bench-optimality: $(VENV)/.test  ## no GPU: each plan that is served, beside any other partition and order of its loop
	$(BIN)/python benchmarks/optimality.py

bench-partitions: $(VENV)/.gpu  ## GPU: partitions that the solver chose, against today's best strategy and the kernel left alone
	$(BIN)/python benchmarks/bench_partitions.py

bench-packing: $(VENV)/.core  ## no GPU: memories without a byte to spare, against CP-SAT
	$(BIN)/python benchmarks/bench_packing.py

bench-planning: $(VENV)/.core  ## no GPU: how fast and how small planning is
	$(BIN)/python benchmarks/planning_speed.py

bench-ablation: $(VENV)/.core  ## no GPU: what each technique of the search is worth, on both splits of the loops
	$(BIN)/python benchmarks/bench_ablation.py

bench-monotone: $(VENV)/.test  ## no GPU: pairs of solves, one of which allows more than the other
	$(BIN)/python benchmarks/monotone.py

bench-vector-add: $(VENV)/.gpu  ## GPU: vector_add against torch.add and the whole of its space
	$(BIN)/python benchmarks/bench_vector_add.py --out benchmarks/results

bench-block: $(VENV)/.gpu  ## GPU: a decoder block of Llama 3 8B, forward and backward, against torch's and torch.compile
	$(BIN)/python benchmarks/bench_block.py --out benchmarks/results

bench-clusters: $(VENV)/.gpu  ## GPU, Triton 3.9: clusters of two CTAs against the same tiles in CTAs of their own
	$(BIN)/python benchmarks/bench_clusters.py --plan
	$(BIN)/python benchmarks/bench_clusters.py

bench-power: $(VENV)/.gpu  ## GPU: candidates of shapes that power limits, each run until clock and power have settled
	$(BIN)/python benchmarks/bench_power.py --plan
	$(BIN)/python benchmarks/bench_power.py

bench-readings: $(VENV)/.gpu  ## GPU: how long a contender that power limits has to run before it is read
	$(BIN)/python benchmarks/bench_readings.py

bench-tma-fill: $(VENV)/.gpu  ## GPU: how fast TMA copies boxes that reach beyond their tensor
	$(BIN)/python benchmarks/bench_tma_fill.py

bench-kernels: $(VENV)/.gpu  ## GPU: grouped, fp8, fused and linear kernels against torch's, and exhaustive search
	$(BIN)/python benchmarks/bench_kernels.py --phase plan
	$(BIN)/python benchmarks/bench_kernels.py --phase search --split train
	$(BIN)/python benchmarks/fit_kernels.py
	$(BIN)/python benchmarks/bench_kernels.py --phase plan
	$(BIN)/python benchmarks/bench_kernels.py --phase search --split heldout
	$(BIN)/python benchmarks/bench_kernels.py --phase compare
	$(BIN)/python benchmarks/kernels_report.py

bench-splits: $(VENV)/.gpu  ## GPU: GEMM plans that split K beside whole ones, on training shapes of few tiles (LIMIT_S=3600)
	$(BIN)/python benchmarks/bench_splits.py --limit-s $(LIMIT_S)

bench-early-launch: $(VENV)/.gpu  ## GPU: launches that begin early, among their like and between others, on training shapes (LIMIT_S=3600)
	$(BIN)/python benchmarks/bench_early_launch.py --limit-s $(LIMIT_S)

bench-gemm-many: $(VENV)/.gpu  ## GPU: GEMM over 1,200 shapes of public models against cuBLAS; a later call goes on (LIMIT_S=3600)
	$(BIN)/python benchmarks/bench_gemm_many.py --limit-s $(LIMIT_S)
	$(BIN)/python benchmarks/gemm_many_report.py

example-moe: $(VENV)/.examples  ## train a mixture-of-experts layer on planned kernels beside torch's; small without a GPU
	$(BIN)/python examples/moe/train.py --out build/moe

example-train: $(VENV)/.examples  ## train a small Llama on planned kernels and compare cold starts with tuning; small without a GPU
	$(BIN)/python examples/train/train.py --out build/train

build: $(VENV)/.test  ## sdist and wheel in dist/
	$(BIN)/python -m build

clean:  ## remove what make made, the environment included; stores and profiles stay
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

imports:
	@mkdir -p $(IMPORTS)/warpplan
	@for room in $(ROOMS); do ln -sfn ../../../$$room $(IMPORTS)/warpplan/$$room; done

# One stamp per set of extras: repeated runs reinstall only when pyproject.toml changes.
$(VENV)/.core: pyproject.toml | $(VENV)/.made
	$(BIN)/python -m pip install --quiet -e .
	@touch $@

$(VENV)/.test: pyproject.toml | $(VENV)/.made
	$(BIN)/python -m pip install --quiet -e ".[test]"
	@touch $@ $(VENV)/.core

$(VENV)/.docs: pyproject.toml | $(VENV)/.made
	$(BIN)/python -m pip install --quiet -e ".[docs]"
	@touch $@ $(VENV)/.core

$(VENV)/.gpu: pyproject.toml | $(VENV)/.made
	$(BIN)/python -m pip install --quiet -e ".[gpu,bench]"
	@touch $@ $(VENV)/.core

$(VENV)/.examples: pyproject.toml | $(VENV)/.made
	$(BIN)/python -m pip install --quiet -e ".[gpu,examples]"
	@touch $@ $(VENV)/.core

$(CONSUMERS)/.ready: tests/service/feeds/consumers.txt | $(VENV)/.test
	rm -rf $(CONSUMERS)
	$(BIN)/python -m pip install --quiet --no-deps --no-compile --target $(CONSUMERS) -r $<
	@touch $@

build/triton-%/.ready: pyproject.toml
	"$(PYTHON)" -m venv --clear $(@D)
	$(@D)/bin/python -m pip install --quiet -e ".[matrix]" "triton==$*"
	@touch $@

# torch pins a Triton of its own, and the others would bring what their readers do not need.
build/torch-feeds/.ready: pyproject.toml tests/service/feeds/torch_consumers.txt
	"$(PYTHON)" -m venv --clear $(@D)
	$(@D)/bin/python -m pip install --quiet -e ".[matrix]" -r tests/service/feeds/torch_consumers.txt
	$(@D)/bin/python -m pip install --quiet --no-deps $(FEED_WHEELS)
	@touch $@

# --clear: an interrupted creation leaves a folder without pip.
$(VENV)/.made:
	@if [ -z "$(PYTHON)" ] || ! "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
		echo "error: no Python 3.11 or newer found$(if $(PYTHON), at $(PYTHON)): install one, or name it: make PYTHON=/path/to/python3" >&2; exit 1; fi
	@"$(PYTHON)" -c 'import ensurepip' 2>/dev/null || { \
		echo "error: $(PYTHON) cannot make virtual environments: on Debian or Ubuntu run 'apt-get install python3-venv'" >&2; exit 1; }
	"$(PYTHON)" -m venv --clear $(VENV)
	@touch $@
