"""The loaded models: load, warm up, replace and unload them, and watch the store."""
