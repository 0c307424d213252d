"""Single-cell datasets: PBMC 3k and your own .h5ad files, preprocessed by scanpy without looking at test cells."""
