"""From what a caller sends to packed token ids: prompts, tokenizers, checks, packing."""
