"""Engines that run a model's graphs on arrays: ONNX Runtime, and numpy float64 for checking."""
