"""Positional encodings as pure functions of numpy arrays. Know no checkpoint format, no ONNX, no service."""
