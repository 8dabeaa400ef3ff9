"""Cohere's API, with the fields that Jina, vLLM and infinity add to rerank requests."""
