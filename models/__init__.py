"""Model families, checkpoints, positional encodings and exported ONNX models; imports only numpy and ml_dtypes."""

import os

VERSION = "0.2.0"

# ONNX Runtime from 1.29 on sends telemetry once it is imported, unless this is set before (its pull request 27379).
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
