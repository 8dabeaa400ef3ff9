"""text-embeddings-inference's API (1.9), REST and gRPC."""
