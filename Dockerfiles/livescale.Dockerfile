# One image for every service: `docker build -f Dockerfiles/livescale.Dockerfile -t livescale .`
#
# torch on the package index brings CUDA 13, which takes 3 GB. Without a GPU, name an index of its CPU wheels:
#   docker compose build --build-arg PIP_EXTRA_INDEX_URL=...
FROM python:3.11-slim

ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG EXTRAS=ucx,load

WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY shared shared
COPY services services
COPY load load
COPY livescale livescale
# The compiler is for the kernels of CPUs; it does not stay.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev \
 && pip install --no-cache-dir -c constraints.txt setuptools \
 && pip install --no-cache-dir --no-build-isolation -c constraints.txt ".[${EXTRAS}]" \
 && apt-get purge -y --auto-remove gcc libc6-dev && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home livescale

USER livescale
ENTRYPOINT ["livescale"]
CMD ["--help"]
