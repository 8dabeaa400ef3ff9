"""OpenAI's embeddings and models, with the members that vLLM and infinity add."""
