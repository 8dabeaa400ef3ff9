"""How models are served: one core behind REST and gRPC. Exports nothing; reads models through their card alone."""
