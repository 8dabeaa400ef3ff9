"""Positional encodings as ONNX graphs: what models/positions/ computes in numpy, emitted. Run nothing."""
