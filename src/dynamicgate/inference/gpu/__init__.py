"""`compile` on a CUDA GPU: gated feed-forward layers run by the fastest strategy for each number of tokens."""
