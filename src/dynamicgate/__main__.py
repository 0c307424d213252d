"""`python -m dynamicgate` and the `dynamicgate` command."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line; if its packages are missing, say how to install them."""
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
