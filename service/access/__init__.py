"""Who may call, and under which certificate. Knows no protocol."""
