"""`python -m interlace`: the command without its script."""

from interlace.cli.main import main

if __name__ == "__main__":
    main()
