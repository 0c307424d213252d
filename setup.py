"""Only the C++ kernels. Everything else is in pyproject.toml.

The library needs no header of torch, so it builds in a bare environment in seconds; without a compiler the package
installs all the same and runs on torch (`dynamicgate.ops.backend()` says which).
"""

import platform
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

KERNEL = "csrc/chain.cpp"  # compiled once for each instruction set; csrc/dispatch.cpp chooses when it is loaded
LEVELS = {
    "x86_64": {"sse2": [], "avx2": ["-mavx2", "-mfma"], "avx512": ["-mavx512f", "-mavx2", "-mfma"]},
    "aarch64": {"neon": []},
    "arm64": {"neon": []},
}.get(platform.machine(), {"plain": []})
# Nobody reads the flags of floating-point exceptions; to keep them, gcc would compute activations one by one (GELU:
# 15 -> 5 ns).
FLAGS = ["-std=c++17", "-O3", "-ffp-contract=fast", "-fno-trapping-math", "-fvisibility=hidden", "-Wall", "-Wextra"]


class Kernels(build_ext):
    """Compiles one source several times, with different flags, which setuptools alone cannot."""

    def build_extension(self, ext):
        """Compile every copy of the kernels, then link them with the rest."""
        for level, flags in LEVELS.items():
            ext.extra_objects += self.compiler.compile(
                [KERNEL],
                output_dir=str(Path(self.build_temp) / level),
                macros=[("DG_LEVEL", level)],
                extra_postargs=[*FLAGS, *flags],
                depends=ext.depends,
            )
        super().build_extension(ext)


setup(
    cmdclass={"build_ext": Kernels},
    ext_modules=[
        Extension(
            "dynamicgate.ops._kernels",
            sources=["csrc/" + name for name in ("dispatch.cpp", "mask.cpp", "pool.cpp", "quick.cpp", "register.cpp")],
            depends=[str(p) for p in Path("csrc").glob("*.h")],
            extra_compile_args=FLAGS,
            libraries=[] if platform.system() == "Darwin" else ["dl"],
            language="c++",
            optional=True,  # no compiler: a warning, not a failure
            py_limited_api=True,  # it looks up what it needs of Python, so one build serves every Python
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
