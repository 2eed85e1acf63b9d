# The controller and the agent of arena-topo; `arena-topo install --image` takes its digest. With the
# same files, base and SOURCE_DATE_EPOCH it has the same files again: what is installed is locked.
FROM python:3.13-slim@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b AS build
# With it compiled modules are checked by their source and not by its date.
ARG SOURCE_DATE_EPOCH=0
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /source
COPY .ci/requirements/build.txt .ci/requirements/image.txt .ci/requirements/
RUN python -m venv /opt/build \
    && /opt/build/bin/pip install --require-hashes -r .ci/requirements/build.txt \
    && python -m venv /opt/arena-topo \
    && /opt/arena-topo/bin/pip install --require-hashes -r .ci/requirements/image.txt
COPY pyproject.toml README.md LICENSE ./
COPY docs/site/metadata.py docs/site/
COPY docs/man docs/man
COPY templates templates
COPY completions completions
COPY arena_topo arena_topo
RUN /opt/build/bin/python -m build --wheel --no-isolation --outdir /wheels . \
    && /opt/arena-topo/bin/pip install --no-deps --no-index /wheels/*.whl

FROM python:3.13-slim@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b
ARG VERSION=unknown REVISION=unknown SOURCE=unknown
LABEL org.opencontainers.image.title="arena-topo" \
    org.opencontainers.image.description="The controller and the node agent of arena-topo" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="$VERSION" \
    org.opencontainers.image.revision="$REVISION" \
    org.opencontainers.image.source="$SOURCE"
COPY --from=build /opt/arena-topo /opt/arena-topo
# Tables are kept under HOME, which must be writable: the root file system is not.
ENV PATH=/opt/arena-topo/bin:$PATH HOME=/tmp PYTHONUNBUFFERED=1
# `install` lets the agent run as root all the same: the kubelet's socket belongs to root.
USER 65532
ENTRYPOINT ["arena-topo"]
