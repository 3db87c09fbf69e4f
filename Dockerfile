# Two stages: the first has the build tools, the second only what runs. `hack/image` builds it without a registry. For
# nodes of both platforms in one image: docker buildx build --platform linux/amd64,linux/arm64 --tag NAME:TAG --push .
#
# PYTHON_IMAGE  a Debian-like image with the Python that the tests run with. For a build that can be repeated, name its
#               digest: --build-arg PYTHON_IMAGE=python:3.11-slim@sha256:… (hack/release accepts nothing else)
# BUILD_IMAGE   the same Python, with what your package index needs: a certificate authority, a pip.conf
# COMMIT        the commit that `nodeleak --version` prints
# VERSION, CREATED, REPOSITORY, BASE_NAME, BASE_DIGEST   for the image's labels. Renovate and registries find the
#               changelog by `source`, and scanners tell by base.digest whether the base image is out of date
# SOURCE_DATE_EPOCH  the time of the files in the wheel, and with BuildKit of the image: hack/release sets it
ARG PYTHON_IMAGE=python:3.11-slim
ARG BUILD_IMAGE=${PYTHON_IMAGE}

FROM ${BUILD_IMAGE} AS build
WORKDIR /src
COPY requirements.txt requirements-build.txt ./
# Only files whose hashes are in the repository are installed. Nothing is resolved, and nothing else is downloaded.
RUN python3 -m venv /build \
    && /build/bin/pip install --no-cache-dir --require-hashes --no-deps -r requirements-build.txt \
    && python3 -m venv --without-pip /opt/nodeleak \
    && /build/bin/pip --python /opt/nodeleak install --no-cache-dir --no-compile --require-hashes --no-deps \
       -r requirements.txt
# More than half of the package is an unused asyncio client, whose own packages hack/lock leaves out. The smoke test below
# fails the build if it is needed.
RUN rm -r /opt/nodeleak/lib/python3.*/site-packages/kubernetes/aio
COPY pyproject.toml README.md LICENSE ./
COPY hack/smoke.py ./
COPY agent agent
ARG COMMIT=
ARG SOURCE_DATE_EPOCH
# Byte code with hashes instead of times: layers may change times, and a read-only root cannot be compiled again.
RUN printf '%s\n' "${COMMIT}" > agent/commit \
    && /build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /dist . \
    && /build/bin/pip --python /opt/nodeleak install --no-cache-dir --no-compile --no-deps --no-index /dist/*.whl \
    && /opt/nodeleak/bin/python3 -m compileall -qf --invalidation-mode unchecked-hash /opt/nodeleak/lib \
    && /opt/nodeleak/bin/python3 -P smoke.py

FROM ${PYTHON_IMAGE}
ARG COMMIT=
ARG VERSION=
ARG CREATED=
ARG REPOSITORY=
ARG BASE_NAME=
ARG BASE_DIGEST=
LABEL org.opencontainers.image.title="nodeleak" \
      org.opencontainers.image.description="Finds and releases leaked CNI addresses on Kubernetes nodes" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.vendor="nodeleak" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${COMMIT}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.url="${REPOSITORY}" \
      org.opencontainers.image.source="${REPOSITORY}" \
      org.opencontainers.image.documentation="${REPOSITORY}/blob/v${VERSION}/README.md" \
      org.opencontainers.image.base.name="${BASE_NAME}" \
      org.opencontainers.image.base.digest="${BASE_DIGEST}"
COPY --from=build /opt/nodeleak /opt/nodeleak
# PATH: for `kubectl exec … nodeleak scan`. MALLOC_ARENA_MAX: Python's threads allocate one at a time, and a heap for each
# of them costs a process 1 MiB. The other MALLOC_*: the C library's own initial values. Where they are set it does not
# raise them, and returns what a large list took: 7 MiB on a node with 65,000 leaks.
ENV PATH=/opt/nodeleak/bin:${PATH} \
    MALLOC_ARENA_MAX=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    MALLOC_MMAP_THRESHOLD_=131072 \
    MALLOC_TRIM_THRESHOLD_=131072
# uid 0, because host-local's files and docker's socket belong to root. It needs no capability: deploy/ drops all of them.
# hadolint ignore=DL3002
USER 0:0
ENTRYPOINT ["nodeleak"]
CMD ["run"]
