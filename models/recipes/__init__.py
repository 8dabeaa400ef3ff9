"""What a model computes, as data: the steps, heads, modules and encodings that cards hold and interpreters read."""
