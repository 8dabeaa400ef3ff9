"""Admission, fair queueing, batching and deadlines. Independent of models and protocols."""
