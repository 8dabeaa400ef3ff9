"""The exported folder of a model: card, weights, tokenizer, verification."""
