"""The protocols that clients speak: each has its routes, schemas and translation, REST and gRPC side by side."""
