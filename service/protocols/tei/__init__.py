"""text-embeddings-inference's contract (1.9), REST and gRPC, over the same road. Ranks and classifies nothing."""
