"""Language models: what gates earn in wide feed-forward layers."""
