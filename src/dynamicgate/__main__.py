"""`python -m dynamicgate` and the `dynamicgate` command."""

from __future__ import annotations

import signal
import sys

INTERRUPTED = 130  # what a shell reports for a program ended by Ctrl-C


def main() -> int:
    """Run the command line, and end quietly if Ctrl-C is pressed, once or again, at any time."""
    try:
        status = _run()
    except KeyboardInterrupt:  # while modules were loading, or again while the first was answered
        print("\ndynamicgate: stopped", file=sys.stderr)
        status = INTERRUPTED
    if status == INTERRUPTED:  # what is left to do is to end: a further Ctrl-C could only interrupt that
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return status


def _run() -> int:
    """The exit code of the command; if packages of the command line are missing, say how to install them."""
    try:
        from dynamicgate.lab.cli import main as run
    except ModuleNotFoundError as error:
        if error.name not in ("tyro", "rich"):
            raise
        print("dynamicgate: the command line needs tyro and rich: pip install 'dynamicgate[cli]'", file=sys.stderr)
        return 2
    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
