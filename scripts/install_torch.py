"""Install the pinned torch into the environment that runs this file, without CUDA libraries where there is no GPU.

The package index's Linux build of torch brings several gigabytes of CUDA. A machine without an NVIDIA GPU gets the CPU
build instead: from wherever pip is configured to find it, else through uv, which knows PyTorch's own indexes. When
neither works the ordinary build is installed, which runs on a CPU as well.
"""

from __future__ import annotations

import importlib.util
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

PINS = Path(__file__).resolve().parents[1] / "constraints.txt"


def pinned(package: str) -> str:
    """Return the pinned version of ``package``."""
    match = re.search(rf"^{package}==([\w.]+)", PINS.read_text("utf-8"), re.MULTILINE)
    if match is None:
        raise SystemExit(f"constraints.txt does not pin {package}")
    return match[1]


def installed() -> str | None:
    """Return the version of torch in this environment, without its local part ("+cpu")."""
    if importlib.util.find_spec("torch") is None:
        return None
    from importlib.metadata import version

    return version("torch").split("+")[0]


def attempt(*words: str) -> bool:
    """Run ``python -m words`` quietly; return whether it worked."""
    done = subprocess.run(
        [sys.executable, "-m", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
    )
    return done.returncode == 0


def main() -> None:
    wanted = pinned("torch")
    if installed() == wanted:
        return
    plain = f"torch=={wanted}"
    linux_cpu = platform.system() == "Linux" and shutil.which("nvidia-smi") is None
    if linux_cpu and platform.machine() in ("x86_64", "AMD64"):
        print(f"no NVIDIA GPU: installing the CPU build of torch {wanted}", flush=True)
        if attempt("pip", "install", f"{plain}+cpu"):
            return
        uv_ready = attempt("uv", "--version") or attempt("pip", "install", "uv")
        if uv_ready and attempt("uv", "pip", "install", "--python", sys.executable, "--torch-backend", "cpu", plain):
            return
        print("no CPU build to be had: installing the ordinary build (several gigabytes)", flush=True)
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", plain], check=True)


if __name__ == "__main__":
    main()
