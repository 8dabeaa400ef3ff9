"""Tokenizers of checkpoints: built where there is no tokenizer.json, and what tokenizer_config.json says of them."""
