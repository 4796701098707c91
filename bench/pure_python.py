"""A module run on sources where hot ones are compiled: `python -m bench.pure_python MODULE ...`."""

import runpy
import sys

from interlace.compiled import prefer_sources


def main() -> None:
    del sys.argv[0]
    prefer_sources()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
