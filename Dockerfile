# The server's image: one stage builds the wheel, the other keeps what run time needs.
#
#   docker build -t corepipe .                              # any builder; WITH_MODEL=1 puts the default model in
#   docker build --build-arg WITH_FLEET=1 ...               # with Ray, for a fleet: docs/fleet.md
#   docker run -p 8000:8000 -e COREPIPE_API_KEY=... corepipe
#
# docs/deploy.md has the hardened form, and `make image-check` builds and runs it.
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS build
# A base whose Python is the distribution's own needs its headers too: BUILD_PACKAGES="g++ python3-dev".
ARG BUILD_PACKAGES="g++"
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends tini ${BUILD_PACKAGES} \
    && rm -rf /var/lib/apt/lists/*
# Where pip looks; a build without network gets PIP_NO_INDEX=1 and a directory of wheels.
ARG PIP_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_NO_INDEX
# Nothing is installed but what `make lock` wrote down, hash by hash.  The place of the application is the same
# in both stages: a virtual environment cannot be moved.
COPY requirements /src/requirements
ARG WITH_FLEET=""
RUN python3 -m venv /build && python3 -m venv /opt/corepipe \
    && /build/bin/pip install --no-cache-dir --only-binary=:all: --require-hashes -r /src/requirements/build.txt \
    && /opt/corepipe/bin/pip install --no-cache-dir --only-binary=:all: --require-hashes \
        -r "/src/requirements/$(if [ -n "${WITH_FLEET}" ]; then echo fleet; else echo run; fi).txt"
COPY pyproject.toml CMakeLists.txt README.md LICENSE /src/
COPY corepipe /src/corepipe
RUN PATH=/build/bin:$PATH COREPIPE_TABLES=all /build/bin/pip wheel --no-cache-dir --no-build-isolation --no-deps --wheel-dir /wheels /src \
    && /opt/corepipe/bin/pip install --no-cache-dir --no-deps --no-index /wheels/*.whl \
    && /opt/corepipe/bin/pip uninstall --yes setuptools \
    && /opt/corepipe/bin/python -c "from corepipe.kernels import native; native()"
ARG WITH_MODEL=""
ENV COREPIPE_CACHE=/var/cache/corepipe
RUN install -d -o 10001 -g 10001 \
        /var/cache/corepipe/models /var/cache/corepipe/packed /var/cache/corepipe/huggingface \
    && if [ -n "${WITH_MODEL}" ]; then /opt/corepipe/bin/corepipe pull; fi

FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="corepipe" \
      org.opencontainers.image.description="Serves a model on the Neuron hardware you don't have yet" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /usr/bin/tini-static /usr/bin/tini
COPY --from=build /opt/corepipe /opt/corepipe
COPY --from=build --chown=10001:10001 /var/cache/corepipe /var/cache/corepipe
# With a read-only root these must be writable: /tmp, and in the cache `packed` (and `models` and `huggingface`
# where models are to be fetched).
ENV PATH=/opt/corepipe/bin:$PATH \
    HOME=/tmp \
    COREPIPE_CACHE=/var/cache/corepipe \
    HF_HOME=/var/cache/corepipe/huggingface \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /tmp
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=120s --retries=3 CMD ["python3", "-m", "corepipe.probe"]
# The kernel withholds SIGTERM from a first process that has no handler yet; behind tini it ends a server that
# still loads, too: with 0, as one that has loaded.
ENTRYPOINT ["tini", "-e", "143", "--", "corepipe"]
# Beyond loopback the server wants API keys (COREPIPE_API_KEY), or --insecure.
CMD ["serve", "--host", "0.0.0.0"]
