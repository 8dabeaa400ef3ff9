"""Embedding whole corpora: reads files of texts, writes files of vectors."""
