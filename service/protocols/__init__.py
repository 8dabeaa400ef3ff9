"""The protocols that clients speak: routes, schemas and translation of each, REST and gRPC side by side."""
