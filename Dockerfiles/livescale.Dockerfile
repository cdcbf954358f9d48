# One image for every service: `docker build -f Dockerfiles/livescale.Dockerfile -t livescale .`
#
# On x86 the default torch wheel brings CUDA along. For a slim image name an index of CPU wheels:
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
RUN pip install --no-cache-dir -c constraints.txt setuptools \
 && pip install --no-cache-dir --no-build-isolation -c constraints.txt ".[${EXTRAS}]" \
 && useradd --create-home livescale

USER livescale
ENTRYPOINT ["livescale"]
CMD ["--help"]
