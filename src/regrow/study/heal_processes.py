"""The training of a study's heal in several processes: torchrun starts ``regrow study step`` once for each.

The step's worker holds the lease, waits, and measures what came out. A heal in several processes equals one in a
single process up to float error (see regrow/heal/processes.py), so the number of processes is no part of a step's id.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from regrow.errors import StudyError
from regrow.records.checkpoint import CheckpointFacts, read_facts
from regrow.study.engines.engine import cause_in

_GRACE_SECONDS = 120.0
_TAIL = 20_000


def train_with_torchrun(study: Path, step_id: str, healed: Path, *, processes: int) -> CheckpointFacts:
    """Return the facts of the checkpoint in ``healed`` after training it in ``processes`` processes of this machine.

    Raises StudyError with the reason in their output when they fail. After KeyboardInterrupt they have saved their
    state.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command += ["-m", "regrow", "study", "step", str(study.absolute()), step_id]
    log = study / "steps" / step_id / "torchrun.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    threads = str(max(1, int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1) // processes))
    environment = {**os.environ, "OMP_NUM_THREADS": threads}
    with log.open("wb") as stream:
        started = subprocess.Popen(command, stdout=stream, stderr=stream, stdin=subprocess.DEVNULL, env=environment)
        try:
            code = started.wait()
        except BaseException:
            _stop(started)
            raise
    facts = read_facts(healed) if code == 0 else None
    if facts is None:
        said = cause_in(log.read_text("utf-8", errors="replace")[-_TAIL:])
        raise StudyError(f"torchrun ended with exit code {code}: {said or 'no output'}", hint=f"see {log}")
    return facts


def _stop(started: subprocess.Popen[bytes]) -> None:
    started.send_signal(signal.SIGINT)
    try:
        started.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        started.kill()
        started.wait()
