# The controller and the agent of arena-topo; `arena-topo install --image` takes its digest.
FROM python:3.12-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY arena_topo arena_topo
COPY templates templates
COPY completions completions
COPY docs/man docs/man
COPY docs/site/metadata.py docs/site/metadata.py
RUN python -m venv /opt/arena-topo \
    && /opt/arena-topo/bin/pip install --no-cache-dir '.[agent]'

FROM python:3.12-slim
COPY --from=build /opt/arena-topo /opt/arena-topo
# Tables are kept under HOME, which must be writable: the root file system is not.
ENV PATH=/opt/arena-topo/bin:$PATH HOME=/tmp PYTHONUNBUFFERED=1
# `install` lets the agent run as root all the same: the kubelet's socket belongs to root.
USER 65532
ENTRYPOINT ["arena-topo"]
