"""Rotary position embedding: config.json → frequencies → cos and sin → rotated q and k. Pure numpy."""
