"""Builds the C++ kernels. Everything else is in pyproject.toml.

They need no header of torch, so they build in a bare environment in seconds. Without a compiler the package still
installs and its ops run on torch (`dynamicgate.ops.backend()` says which).
"""

import platform
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

KERNEL = "csrc/chain.cpp"  # compiled once for each instruction set; csrc/cpu_level.cpp chooses among the copies
LEVELS = {
    "x86_64": {"sse2": [], "avx2": ["-mavx2", "-mfma"], "avx512": ["-mavx512f", "-mavx2", "-mfma"]},
    "aarch64": {"neon": []},
    "arm64": {"neon": []},
}.get(sysconfig.get_platform().rpartition("-")[2], {"plain": []})  # the machine to build for, as in the wheel's name
# Nothing reads the flags of floating-point exceptions; preserving them would keep gcc from vectorising activations
# (GELU: 15 -> 5 ns).
SOURCES = (
    "cpu_level.cpp",
    "decoder.cpp",
    "dispatcher_bypass.cpp",
    "huge_pages.cpp",
    "mask.cpp",
    "pool.cpp",
    "register.cpp",
    "validate.cpp",
)
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


if __name__ == "__main__":
    setup(
        cmdclass={"build_ext": Kernels},
        ext_modules=[
            Extension(
                "dynamicgate.ops._kernels",
                sources=["csrc/" + name for name in SOURCES],
                depends=[str(p) for p in Path("csrc").glob("*.h")],
                extra_compile_args=FLAGS,
                libraries=[] if platform.system() == "Darwin" else ["dl"],
                language="c++",
                optional=True,  # no compiler: a warning, not a failure
                py_limited_api=True,  # it looks up the Python functions it needs, so one build works with every Python
            )
        ],
        options={"bdist_wheel": {"py_limited_api": "cp310"}},
    )
