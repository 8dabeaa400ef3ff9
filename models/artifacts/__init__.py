"""The exported folder of a model: card, weights, quantization, tokenizer, verification."""
