"""E2bird's figures and tables: `python -m bench.papers.e2bird figure14`."""

from bench.harness import main
from bench.papers.e2bird import figures

if __name__ == "__main__":
    main(
        figures.table4,
        figures.figure2,
        figures.figure13,
        figures.figure14,
    )
