"""Static embeddings: a table, a mean and a rule or two. Model2Vec and sentence-transformers StaticEmbedding."""
