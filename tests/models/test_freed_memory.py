"""What keeping freed memory does to page faults, in processes of their own: the setting belongs to a whole process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's setting")

FAULTS = """
import resource, sys, torch
from regrow.models.freed_memory import keep_freed_memory
kept = keep_freed_memory() if sys.argv[1] == "kept" else False
def layer():
    big = torch.ones(16 << 20)  # 64 MB, freed again: more than glibc ever keeps by itself
for _ in range(15):
    layer()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    layer()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(way: str, **environment: str) -> tuple[str, int]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", FAULTS, way], env=plain | environment, capture_output=True, text=True, check=True
    )
    kept, count = done.stdout.split()
    return kept, int(count)


def test_the_next_tensor_takes_the_memory_of_the_last() -> None:
    (kept, few), (_, many) = faults("kept"), faults("plain")
    if kept == "False":
        pytest.skip("no glibc")
    assert few < many / 4 and many > 1000


def test_a_users_own_setting_stays() -> None:
    assert faults("kept", MALLOC_TRIM_THRESHOLD_="131072")[0] == "False"
    assert faults("kept", GLIBC_TUNABLES="glibc.malloc.top_pad=131072")[0] == "False"
