"""D-STACK's tables and figures: `python -m bench.papers.dstack figure11`."""

from bench.harness import main
from bench.papers.dstack import figure11, figures

if __name__ == "__main__":
    main(
        figures.table1,
        figures.figure9,
        figures.figure10,
        figure11.figure11,
        figures.figure12,
    )
