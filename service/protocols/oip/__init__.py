"""The Open Inference Protocol v2, as Triton and KServe speak it: tensors in, tensors out, over REST and gRPC.

datatypes, tensors, padding, parameters, infer   the core, which knows neither HTTP nor gRPC
described, statistics, shared_memory             what is said of models and of this process, and memory lent by clients
binary, rest                                     HTTP; the gRPC half stands beside them
"""
