"""Trained models for runtimes that know nothing of this package: ONNX, torch.export and AOTInductor."""

from dynamicgate.export.aot import to_aot, to_program
from dynamicgate.export.exported import Exported
from dynamicgate.export.onnx_file import to_onnx

__all__ = ["Exported", "to_aot", "to_onnx", "to_program"]
