"""The program behind spawner.py: reads orders, a line of JSON each, and forks services; ends with its input.

{"ready": true} answers true; {"serve": [flag, ...], "log": path} the pid; {"poll": pid} its exit status, null while it
runs.
"""

import contextlib
import json
import os
import signal
import sys
from typing import NoReturn

from kvcairn_service.cli import app  # what every fork then has


def _fork(flags: list[str], log: str) -> int:
    pid = os.fork()
    with contextlib.suppress(PermissionError):  # in both, so that neither runs before it is done
        os.setpgid(pid, pid)
    if pid:
        return pid
    status = 1
    try:
        status = _serve(flags, log)
    finally:
        os._exit(status)


def _serve(flags: list[str], log: str) -> int:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number in (1, 2):
        os.dup2(descriptor, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = ["kvcairn", "serve", *flags]
    try:
        app(prog_name="kvcairn")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0


def _poll(pid: int) -> int | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _run() -> NoReturn:
    children: set[int] = set()
    for line in sys.stdin:
        order = json.loads(line)
        if "serve" in order:
            answer = _fork(order["serve"], order["log"])
            children.add(answer)
        elif "ready" in order:
            answer = True
        else:
            answer = _poll(order["poll"])
            children -= {order["poll"]} if answer is not None else set()
        print(json.dumps(answer), flush=True)
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    sys.exit()


if __name__ == "__main__":
    _run()
