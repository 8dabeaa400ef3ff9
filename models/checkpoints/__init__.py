"""Opens checkpoints by the name an operator gives: folders, GGUF files, hub ids, ONNX folders."""
