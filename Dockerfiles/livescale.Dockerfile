# One image for every service: `docker build -f Dockerfiles/livescale.Dockerfile -t livescale .`
#
# Without CUDA name an index of CPU wheels of torch:
#   docker compose build --build-arg PIP_EXTRA_INDEX_URL=...
# With CUDA 13:
#   docker compose build --build-arg CONSTRAINTS=constraints-cuda.txt --build-arg EXTRAS=ucx-cu13,load
FROM python:3.11-slim

ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG CONSTRAINTS=constraints.txt
ARG EXTRAS=ucx,load

WORKDIR /app
COPY pyproject.toml constraints.txt constraints-cuda.txt README.md LICENSE ./
COPY shared shared
COPY services services
COPY load load
# The compiler is for the kernels of CPUs; it does not stay.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev \
 && pip install --no-cache-dir -c ${CONSTRAINTS} setuptools \
 && pip install --no-cache-dir --no-build-isolation -c ${CONSTRAINTS} ".[${EXTRAS}]" \
 && apt-get purge -y --auto-remove gcc libc6-dev && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home livescale

USER livescale
ENTRYPOINT ["livescale"]
CMD ["--help"]
