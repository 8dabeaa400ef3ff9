"""Model families, checkpoints, positional encodings and exported ONNX models; imports numpy and ml_dtypes alone."""

import os

VERSION = "0.2.0"

# ONNX Runtime from 1.29 on sends telemetry once it is imported, unless this is set before (its pull request 27379).
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
