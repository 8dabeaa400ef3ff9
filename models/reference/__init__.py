"""Recipes in numpy float64: the judge of what ONNX Runtime computes."""
