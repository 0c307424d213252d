"""Models as one safetensors file: tensors, and a JSON header that rebuilds the modules around them."""

from dynamicgate.io.model_file import load, save

__all__ = ["load", "save"]
