"""What a model is: families as data, checkpoints in, exported ONNX models out. Serves nothing; needs only numpy to import."""
