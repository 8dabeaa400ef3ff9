"""How models are served: one core behind REST and gRPC. Exports nothing; reads models through their card alone."""

import models as models  # first, before any module here imports onnxruntime: it turns its telemetry off
