"""The Open Inference Protocol v2, as Triton and KServe speak it: tensors in, tensors out, over REST and gRPC."""
