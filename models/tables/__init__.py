"""Computations on an exported embedding table in numpy, block by block: neighbours, gradients, norms, spectrum."""
