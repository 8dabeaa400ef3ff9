"""Serves models over REST and gRPC with one core; a model is read through its card."""

import models as models  # first, before any module here imports onnxruntime: it turns its telemetry off
