"""What may be asked of an exported table: neighbours, gradients, norms and spectrum. Pure numpy, blocked."""
