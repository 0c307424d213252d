"""Gates in Hugging Face models: saving, training with `Trainer`, conversion. Needs the extra `hf`."""

from __future__ import annotations

try:
    import transformers as _transformers
except ImportError as error:
    raise ImportError("dynamicgate.hf needs Transformers: pip install 'dynamicgate[hf]'") from error

from dynamicgate.hf.adapters import train_gates_

del _transformers
__all__ = ["train_gates_"]
