"""How tables lie on disk: whole, rounded, quantised or linked. Knows no family."""
