"""The exported folder of a model: card, weights, links, tokenizer, verification."""
