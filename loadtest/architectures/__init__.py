"""Whole models of several architectures at real sizes, with random weights, beside torch."""
