"""Rotary position embedding: config.json → frequencies → cos and sin → rotated q and k, in numpy alone."""
