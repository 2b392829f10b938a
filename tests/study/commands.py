"""``regrow study`` in processes of their own, for what only a signal or a second process can show."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.study.tiny_study import tiny_spec


def command(*words: object, **options: Any) -> subprocess.Popen[str]:
    """Return ``regrow study WORDS`` just started."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "regrow", "study", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        **{"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), **options},
    )


def python(script: str, **options: Any) -> subprocess.Popen[str]:
    """Return a Python process just started on a script, with a pipe to its input and from its output."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


def write_spec(file: Path, model: Path, **changes: Any) -> Path:
    """Return ``file`` after writing the tiny study there, on two worker processes unless ``changes`` say otherwise."""
    spec = tiny_spec(model, **{"engine": {"name": "subprocess", "workers": 2, "threads": 1}, **changes})
    file.write_text(yaml.safe_dump(spec.model_dump(mode="json")))
    return file


def wait_for(true: Callable[[], object], process: subprocess.Popen[str], seconds: float = 240.0) -> None:
    """Return when ``true()`` is; fail when the process ends or the time is over before."""
    until = time.monotonic() + seconds
    while not true():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.02)
