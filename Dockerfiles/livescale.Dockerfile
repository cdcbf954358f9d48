# One image for every service and for the bus: `docker build -f Dockerfiles/livescale.Dockerfile -t livescale .`
#
# What is built stays, compiler and wheels do not. Python packages come from wheels/ where `make wheels` has put them,
# and from the package index otherwise. A builder without a C compiler installs one. So with a base, a builder and
# wheels at hand (`make image`) the build needs no network.
# DEVICE=cuda keeps CUDA, which takes 4 GB and is of no use without a GPU; it needs the package index.
ARG BASE=python:3.11-slim-bookworm
ARG BUILDER=${BASE}

FROM ${BUILDER} AS builder
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG DEVICE=cpu
RUN command -v gcc >/dev/null || { apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev; }
RUN python3 -m venv /opt/livescale
WORKDIR /build
# The dependencies first: they stay in the engine's cache when only our code changes. Without a GPU those are left out
# that only GPUs use.
COPY constraints.txt Dockerfiles/requirements.txt Dockerfiles/prune.py ./
COPY wheels wheels
RUN set -eu; PATH=/opt/livescale/bin:$PATH; \
    export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CONSTRAINT=constraints.txt; \
    if ls wheels/*.whl >/dev/null 2>&1; then export PIP_NO_INDEX=1 PIP_FIND_LINKS=wheels; fi; \
    pip install --quiet setuptools; \
    if [ "$DEVICE" = cpu ]; then \
        pip install --quiet --no-deps -r requirements.txt; \
        python prune.py /opt/livescale/lib/python3.11/site-packages; \
    else \
        pip install --quiet -r requirements.txt; \
    fi
COPY pyproject.toml README.md LICENSE ./
COPY shared shared
COPY services services
COPY load load
COPY livescale livescale
# Kernels are compiled for all kinds of CPUs; each worker chooses among them when it starts.
RUN set -eu; PATH=/opt/livescale/bin:$PATH; \
    pip install --quiet --no-cache-dir --no-deps --no-build-isolation --no-index .; \
    cd /; python -c 'import livescale.services.worker.engine.kernels.compiled'; \
    pip uninstall --quiet --yes setuptools pip

FROM ${BASE}
# Public images of Python come without its compiled modules. Our processes cannot write them, so each would compile them.
RUN python3 -m compileall -q -x '/(test|tests|lib2to3|[a-z]+-packages)/' \
    "$(python3 -c 'import os; print(os.path.dirname(os.__file__))')"
COPY --from=builder /opt/livescale /opt/livescale
COPY Dockerfiles/probe.py /opt/livescale/bin/probe
# Volumes take their owner from here.
RUN cd /var/lib && mkdir -p livescale/hub livescale/nats livescale/packed livescale/targets \
 && chown -R 10001:10001 /var/lib/livescale
ENV PATH=/opt/livescale/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/tmp \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    LIVESCALE_SYSTEM_FILE=/tmp/livescale-system
# A number, so that Kubernetes sees that it is not root.
USER 10001:10001
HEALTHCHECK --interval=10s --timeout=10s --start-period=60s --retries=3 CMD ["probe"]
ENTRYPOINT ["livescale"]
CMD ["--help"]
