"""What a model is: families as data, checkpoints in, exported ONNX models out. Serves nothing; needs numpy alone."""

import os

VERSION = "0.1.0"

# ONNX Runtime from 1.29 on reports to its maker as soon as it is imported, unless told before (its pull request 27379).
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
