"""Positional encodings as pure functions of numpy arrays, usable without the rest of this project."""
