"""Models as one safetensors file."""

from dynamicgate.io.model_file import load, save

__all__ = ["load", "save"]
