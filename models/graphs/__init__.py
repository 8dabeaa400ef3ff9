"""Emits recipes as ONNX graphs."""
