"""Does the cluster that a study names answer? Asked with a limit of time, before anything is started there."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from contextlib import suppress

from regrow.errors import ConfigError, StudyError

PORT_SECONDS = 5.0
RAY_SECONDS = 60.0
"""Ray itself waits for minutes for a cluster that is not there; a live one takes seconds, more on a loaded machine."""
SLURM_SECONDS = 30.0
_JOIN = (
    "import sys, ray\n"
    "ray.init(address=sys.argv[1], log_to_driver=False, configure_logging=False)\n"
    "print(sum(node['Alive'] for node in ray.nodes()))"
)


def ray_address(address: str | None) -> str | None:
    """Return the cluster that ray would join: ``address``, or the one that RAY_ADDRESS names; None for none."""
    return address or os.environ.get("RAY_ADDRESS") or None


def ray_nodes(address: str, *, seconds: float = RAY_SECONDS) -> int:
    """Return how many nodes the ray cluster at ``address`` has. Raises StudyError when none answers within ``seconds``.

    Asked in another process: a driver that waits for a dead cluster cannot be called back.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=min(PORT_SECONDS, seconds)).close()
        except (OSError, OverflowError) as error:
            raise _no_ray(address, f"nothing listens there: {error}") from error
    asked = subprocess.Popen(
        [sys.executable, "-c", _JOIN, address],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = asked.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise _no_ray(address, f"no answer within {seconds:g} s") from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(asked.pid, 9) if hasattr(os, "killpg") else asked.kill()
        asked.wait()
    said = out.split()
    if asked.returncode or not said or not said[-1].isdigit():
        lines = [line for line in err.strip().splitlines() if line.strip()]
        raise _no_ray(address, lines[-1].strip() if lines else f"exit code {asked.returncode}")
    return int(said[-1])


def _no_ray(address: str, why: str) -> StudyError:
    return StudyError(
        f"no ray cluster answers at '{address}' ({why})",
        hint="start one (ray start --head), correct engine.address, or leave it out to use this machine",
    )


def slurm_partitions(partition: str | None, *, seconds: float = SLURM_SECONDS) -> str:
    """Return the partitions of the slurm cluster here, as a phrase. Raises ConfigError where there is no slurm or no
    ``partition`` of that name, StudyError where its controller does not answer within ``seconds``."""
    if shutil.which("sbatch") is None:
        raise ConfigError(
            "there is no `sbatch` here, so no slurm job can be submitted",
            hint="run this on a login node of the cluster, or set engine.cluster: local",
        )
    try:
        asked = subprocess.run(
            ["sinfo", "--noheader", "--format=%R"],
            capture_output=True,
            text=True,
            timeout=seconds,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", "") or "").strip().splitlines()
        why = f"no answer within {seconds:g} s" if isinstance(error, subprocess.TimeoutExpired) else str(error)
        raise StudyError(
            f"slurm does not answer (`sinfo`: {said[-1] if said else why})",
            hint="ask whether the cluster is up (sinfo), or set engine.cluster: local",
        ) from error
    there = list(dict.fromkeys(asked.stdout.split()))
    if partition is not None and partition not in there:
        raise ConfigError(
            f"slurm has no partition '{partition}'", hint=f"engine.partition: one of {', '.join(there) or 'none'}"
        )
    return f"partitions {', '.join(there)}" if there else "no partitions"
