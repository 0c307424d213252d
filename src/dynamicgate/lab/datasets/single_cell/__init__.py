"""Single cells: PBMC 3k and your own .h5ad, prepared by scanpy without a look at test cells."""
