"""The kinds of outputs: one file for each."""
