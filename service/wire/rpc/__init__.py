"""gRPC: one server for the services of every protocol. The only room that imports grpc."""
