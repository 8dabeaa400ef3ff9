"""Ollama's routes for embedding models, and 501 for its others."""
