"""Opening what a person names: checkpoint folders, GGUF files, hub ids, ONNX folders."""
