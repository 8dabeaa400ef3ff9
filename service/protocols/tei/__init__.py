"""text-embeddings-inference's API (1.9), REST and gRPC. Its routes for ranking and classifying return errors."""
