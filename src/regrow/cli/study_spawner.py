"""A process that has imported everything and forks once per step: starting a step costs no import of torch.

It reads one JSON line per step on standard input ({"step", "study", "log"}) and writes one per event on standard output
({"step", "pid"} when a step begins, {"step", "code"} when it ends; a negative code is a signal). When its input ends,
because the runner died or is done, it stops its children, which save their state, and waits for them. It starts no
threads and computes nothing itself, so forking it is safe.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from contextlib import suppress
from typing import Any

_LOOK_SECONDS = 0.02


def spawn() -> None:
    """Serve until the input ends."""
    # It ends when its runner does; a Ctrl-C or a SIGTERM that reaches it too must not make it leave its children.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    import regrow.cli.study
    import regrow.report.card
    import regrow.study.execute  # noqa: F401

    children: dict[int, str] = {}
    waiting = b""
    open_input = True
    _say({"ready": True})
    while open_input or children:
        if open_input:
            readable, _, _ = select.select([0], [], [], _LOOK_SECONDS)
            if readable:
                piece = os.read(0, 65_536)
                if piece:
                    *lines, waiting = (waiting + piece).split(b"\n")
                    for line in lines:
                        request = json.loads(line)
                        children[_begin(request)] = request["step"]
                else:
                    open_input = False
                    for child in children:
                        os.kill(child, signal.SIGTERM)
        ended, status = os.waitpid(-1, 0 if not open_input and children else os.WNOHANG) if children else (0, 0)
        if ended:
            _say({"step": children.pop(ended), "code": os.waitstatus_to_exitcode(status)})


def _begin(request: dict[str, Any]) -> int:
    # A SIGTERM for the child that comes before it has set its own handlers must wait: here it is ignored.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    child = os.fork()
    if child:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        _say({"step": request["step"], "pid": child})
        return child
    code = 1
    try:
        os.setpgid(0, 0)  # Ctrl-C of the terminal goes to the runner, which then asks once
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        empty = os.open(os.devnull, os.O_RDONLY)
        for target, origin in ((0, empty), (1, log), (2, log)):
            os.dup2(origin, target)
        from regrow.study.worker import PARENT

        os.environ[PARENT] = str(os.getppid())
        code = _step(request)
    except KeyboardInterrupt:
        code = 130
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def _step(request: dict[str, Any]) -> int:
    from regrow.cli.main import main

    try:
        main(["study", "step", request["study"], request["step"]])
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
        return 1
    return 0


def _say(event: dict[str, Any]) -> None:
    with suppress(BrokenPipeError):  # the runner is gone; the end of the input says the same
        os.write(1, json.dumps(event).encode() + b"\n")


if __name__ == "__main__":
    spawn()
