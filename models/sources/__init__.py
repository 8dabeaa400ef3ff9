"""Where checkpoints come from: folders of safetensors, GGUF files, hub ids. Knows no family and emits no graph."""
