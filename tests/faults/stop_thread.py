"""Stops one thread of a process until standard input ends, while its other threads go on: a stage that hangs.

    python3 stop_thread.py PID THREAD_NAME

Says `stopped` when it is. Needs the right to trace the process (its parent's, or root's).
"""

import ctypes
import os
import sys

PTRACE_SEIZE = 0x4206
PTRACE_INTERRUPT = 0x4207
PTRACE_DETACH = 17
WAIT_ALL = 0x40000000  # __WALL


def find(process, name):
    """The number of the first thread whose name begins so; the system cuts names to 15 letters."""
    for thread in os.listdir(f"/proc/{process}/task"):
        with open(f"/proc/{process}/task/{thread}/comm") as file:
            if file.read().startswith(name):
                return int(thread)
    sys.exit(f"process {process} has no thread {name}")


def main():
    process, name = sys.argv[1:]
    thread = find(process, name)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long] * 4

    def trace(request):
        if libc.ptrace(request, thread, 0, 0) != 0:
            sys.exit(f"cannot trace thread {thread}: {os.strerror(ctypes.get_errno())}")

    trace(PTRACE_SEIZE)
    trace(PTRACE_INTERRUPT)
    os.waitpid(thread, WAIT_ALL)
    print("stopped", flush=True)
    sys.stdin.read()
    trace(PTRACE_DETACH)


main()
