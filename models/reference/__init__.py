"""Computes recipes in numpy float64: the reference for every exported graph."""
