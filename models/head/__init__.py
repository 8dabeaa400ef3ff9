"""Output heads: from hidden rows to logits. A row a family, fitted to a checkpoint, as a graph and in numpy."""
