"""Positional encodings as ONNX graphs: the same values that models/positions/ computes in numpy."""
