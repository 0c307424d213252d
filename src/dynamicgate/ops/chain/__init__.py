"""A chain of layers: h <- factor * phi(W h + b), open blocks only."""
