"""The command line: `inlay serve`, `export`, `list` and the other commands."""
