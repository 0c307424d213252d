"""`import dynamicgate` costs torch, numpy and safetensors, and nothing else."""

from __future__ import annotations

import subprocess
import sys

EXTRAS = ("sklearn", "jinja2", "rich", "tyro", "matplotlib", "scipy", "pandas")


def test_importing_the_package_imports_no_extra() -> None:
    code = f"import sys, dynamicgate; print(*[m for m in {EXTRAS} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_importing_the_package_changes_nothing_about_torch() -> None:
    ask = "(torch.get_default_dtype(), torch.is_grad_enabled(), torch.initial_seed(), torch.get_num_threads())"
    code = f"import torch; torch.manual_seed(3); before = {ask}; import dynamicgate; assert before == {ask}"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_every_name_the_package_announces_is_there() -> None:
    import dynamicgate

    assert [name for name in dynamicgate.__all__ if not hasattr(dynamicgate, name)] == []
