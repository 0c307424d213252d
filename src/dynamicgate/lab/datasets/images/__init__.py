"""Images: CIFAR-10, Tiny-ImageNet and folders of your own, as uint8 stores that are read by batches."""
