"""The gRPC server, and the pipeline that all its methods share."""
