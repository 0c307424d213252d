"""`python -m dynamicgate` and the `dynamicgate` command."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line; without its packages, say how to get them."""
    try:
        from dynamicgate.lab.cli import main as run
    except ModuleNotFoundError as error:
        if error.name not in ("tyro", "rich"):
            raise
        print("dynamicgate: the command line needs more packages: pip install 'dynamicgate[cli]'", file=sys.stderr)
        return 2
    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
