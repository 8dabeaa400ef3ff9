"""The gRPC contracts and their generated stubs. Holds no behaviour."""
