"""Input layers of models that read images or spectrograms: preprocessing, patches, frames and their positions."""
