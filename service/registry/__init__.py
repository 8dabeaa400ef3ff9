"""The loaded models: loading, warming up, exchanging and unloading them, and watching the store."""
