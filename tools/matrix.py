"""Install the wheel of this machine into a fresh environment of every supported Python that can be found, and use it:
`make matrix`. Which Pythons were found, and what each of them did, is printed.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("3.10", "3.11", "3.12", "3.13")
CHECK = """
import sys, torch, dynamicgate as dg
from dynamicgate import ops

assert ops.backend().startswith("c++"), ops.backend()
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
dg.gate_(model, dg.GateConfig(block=16))
x, y = torch.randn(256, 32), torch.randint(4, (256,))
dg.fit(model, (x, y), budget=dg.Budget(target=0.6), epochs=2, show=False)
fast = dg.compile(model, example=x, seconds=0.2)
assert torch.allclose(fast(x), model(x), atol=1e-4)
dg.save(model, "model.safetensors")
assert torch.equal(dg.load("model.safetensors")(x), model(x))
print("python", sys.version.split()[0], "torch", torch.__version__, ops.backend(), dg.measure(model, (x, y)))
"""


def find_python(version: str) -> str | None:
    """The path of this Python, on the search path or among those of pyenv; None if there is none that runs."""
    on_path = shutil.which(f"python{version}")
    found = [on_path] if on_path else []
    found += [str(path) for path in sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))]
    for path in found:
        command = [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return path
    return None


def try_python(path: str, wheel: Path) -> bool:
    """Whether the wheel installs and works with this Python."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([path, "-m", "venv", folder], check=True)
        python = str(Path(folder) / "bin" / "python")
        install = [python, "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"), str(wheel)]
        checked = subprocess.run(install, check=False).returncode == 0
        return checked and subprocess.run([python, "-W", "error", "-c", CHECK], cwd=folder, check=False).returncode == 0


def main(versions: list[str]) -> int:
    """Try every version; 1 if one failed. A Python that is not there is no failure, and is named."""
    wheels = sorted((ROOT / "dist").glob(f"*manylinux*_{platform.machine()}.whl"))
    if not wheels:
        print(f"dist/ has no wheel for {platform.machine()}: run `make wheels` first", file=sys.stderr)
        return 2
    failed = []
    for version in versions:
        path = find_python(version)
        if path is None:
            print(f"python {version}: not found, not tried")
        elif not try_python(path, wheels[-1]):
            failed.append(version)
            print(f"python {version}: FAILED")
        else:
            print(f"python {version}: works")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(VERSIONS)))
