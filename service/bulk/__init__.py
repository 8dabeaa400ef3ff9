"""Embedding whole corpora: files of texts in, files of vectors out."""
