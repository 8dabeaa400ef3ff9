"""Serves models over REST and gRPC, with one core behind both. It reads a model through its card."""

import models as models  # first, before any module here imports onnxruntime: it turns its telemetry off
