"""A model made ready on the GPU: precision, buckets, one graph per bucket and partition."""
