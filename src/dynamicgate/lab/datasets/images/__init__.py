"""Image datasets: CIFAR-10, Tiny-ImageNet and your own folders, kept as uint8 pixels and read in batches."""
