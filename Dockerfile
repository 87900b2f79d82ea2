# `bai serve`, the executor of the benchmark service, in a container. docs/service.md tells what it needs.
#
#     docker build --tag bai .
#     docker run --rm --env KAFKA_BOOTSTRAP_SERVERS --env BAI_BUCKET --env BAI_REGION --env BAI_INSTANCE_PROFILE --publish 9108:9108 bai
ARG BASE=docker.io/library/debian:12-slim

FROM ${BASE} AS build
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends ca-certificates python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source

# What others wrote is a layer of its own: a change of the code fetches nothing again.
COPY setup.cfg pyproject.toml README.md LICENSE ./
RUN mkdir bai_agent cloud_init executor \
    && touch bai_agent/__init__.py cloud_init/__init__.py executor/__init__.py \
    && python3 -m venv /opt/bai \
    && /opt/bai/bin/pip install --no-cache-dir --disable-pip-version-check --quiet '.[executor]' \
    && /opt/bai/bin/pip uninstall --quiet --yes bai-agent \
    && rm -rf build ./*.egg-info

COPY bai_agent bai_agent
COPY cloud_init cloud_init
COPY executor executor
# The agent's bundles too, so that the first launch waits for no package index and nothing is written where the service runs.
ENV XDG_CACHE_HOME=/opt/cache
RUN /opt/bai/bin/pip install --no-cache-dir --disable-pip-version-check --quiet --no-deps . \
    && /opt/bai/bin/bai bundle \
    && /opt/bai/bin/pip uninstall --quiet --yes setuptools pip \
    && chmod -R a+rX /opt/bai /opt/cache

FROM ${BASE}
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends ca-certificates python3-minimal libpython3-stdlib \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --no-log-init --uid 10001 --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin bai
COPY --from=build /opt/bai /opt/bai
COPY --from=build /opt/cache /opt/cache
ENV PATH=/opt/bai/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 XDG_CACHE_HOME=/opt/cache BAI_CONFIG=/etc/bai/config.toml
USER 10001:10001
EXPOSE 9108
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9108/healthz', timeout=4)"]
ENTRYPOINT ["bai"]
CMD ["serve", "--http", ":9108", "--json-log"]
