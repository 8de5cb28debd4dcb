# One image for all of Callboard. The command says what runs: api, worker, scheduler, projector, migrate, drain.
#
# The base is an argument. A build that can be repeated names it by its digest:
#   docker build --build-arg PYTHON_IMAGE=python:3.12-slim-bookworm@sha256:... --tag callboard .
ARG PYTHON_IMAGE=python:3.12-slim-bookworm

FROM ${PYTHON_IMAGE} AS builder
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
# Without pip of its own: what is copied from here can install nothing.
RUN ["python", "-m", "venv", "--without-pip", "/opt/callboard"]
# The locks first: a change of the source leaves these layers as they are. No package is compiled.
COPY requirements-build.lock requirements-image.lock ./
RUN ["python", "-m", "pip", "install", "--require-hashes", "--only-binary=:all:", "-r", "requirements-build.lock"]
# hadolint ignore=DL3059
RUN ["python", "-m", "pip", "--python", "/opt/callboard/bin/python", "install", "--require-hashes", "--only-binary=:all:", "-r", "requirements-image.lock"]
COPY pyproject.toml README.md LICENSE ./
COPY service ./service
COPY actors ./actors
RUN ["python", "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", "dist", "."]
# hadolint ignore=DL3059
RUN ["python", "-m", "pip", "--python", "/opt/callboard/bin/python", "install", "--no-deps", "--no-index", "--find-links", "dist", "callboard"]

FROM ${PYTHON_IMAGE}
COPY --from=builder /opt/callboard /opt/callboard
# Nothing is written but to /tmp, so the root may be read-only. What a container serves is asked from elsewhere: its
# probes listen everywhere, and so does the API, which wants keys for that.
ENV PATH="/opt/callboard/bin:${PATH}" \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    CALLBOARD_RUN_DIR=/tmp/callboard \
    CALLBOARD_WORKER_HOST=0.0.0.0 \
    CALLBOARD_API_HOST=0.0.0.0 \
    CALLBOARD_API_ACCESS=keys \
    CALLBOARD_LOG_FORMAT=json
# Actors of your own may lie here; they are found without being installed.
WORKDIR /srv/callboard
EXPOSE 8000 9191
# By number, so that Kubernetes can see that it is not root.
USER 10001:10001
STOPSIGNAL SIGTERM
# Kubernetes and Compose have checks of their own, for each command another.
HEALTHCHECK NONE
# The exec form: SIGTERM reaches Python, with no shell before it.
ENTRYPOINT ["callboard"]
CMD ["--help"]
# Last: each build has others.
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="callboard" \
      org.opencontainers.image.description="Background jobs for Python teams: API, workers, scheduler and projector" \
      org.opencontainers.image.licenses="MIT" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
