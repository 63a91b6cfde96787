# Backflow in a container: docker build --tag backflow .
#   docker run --volume ./rules.toml:/etc/backflow/rules.toml:ro --volume backflow:/var/lib/backflow backflow
# The image has no Java: set enabled = false in [spark], or run the Spark checks elsewhere.

FROM python:3.11-slim-bookworm AS build
WORKDIR /src
COPY scripts/runtime_lock scripts/
COPY pyproject.toml requirements.lock ./
RUN python scripts/runtime_lock > runtime.lock \
    && python -m venv /opt/backflow \
    && /opt/backflow/bin/pip install --no-cache-dir --no-deps --require-hashes --requirement runtime.lock
COPY README.md LICENSE rules.toml ./
COPY package/ package/
COPY agent/ agent/
COPY spark_checks/ spark_checks/
COPY testbed/ testbed/
RUN /opt/backflow/bin/pip install --no-cache-dir --no-deps . \
    && /opt/backflow/bin/pip uninstall --yes pip

FROM python:3.11-slim-bookworm
RUN useradd --system --uid 10001 --home-dir /var/lib/backflow --create-home backflow
COPY --from=build /opt/backflow /opt/backflow
ENV PATH=/opt/backflow/bin:$PATH PYTHONUNBUFFERED=1 ARROW_DEFAULT_MEMORY_POOL=system STATE_DIRECTORY=/var/lib/backflow
USER 10001
WORKDIR /var/lib/backflow
VOLUME ["/var/lib/backflow"]
ENTRYPOINT ["backflow"]
CMD ["run", "--config", "/etc/backflow/rules.toml"]
