"""Turns inputs into packed token ids: prompts, tokenizers, checks, packing."""
