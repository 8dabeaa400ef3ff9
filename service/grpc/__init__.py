"""The gRPC server and what every method of it shares."""
