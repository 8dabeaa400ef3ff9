"""The core: requests, validation, tokenization, packing, pooling and output selection. Independent of any protocol."""
