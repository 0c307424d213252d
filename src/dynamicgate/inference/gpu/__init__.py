"""Plans on a CUDA GPU: gated feed-forward layers find the fastest way to run, for each number of tokens."""
