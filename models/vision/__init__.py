"""Input layers that begin with an image or a spectrogram: what models/ does for tokens, for patches and frames."""
