"""The figures and tables of the primitives paper: `python -m bench.papers.primitives figure1`."""

from bench.harness import main
from bench.papers.primitives import figures, recognition

if __name__ == "__main__":
    main(
        figures.figure1,
        figures.figure9,
        recognition.table3,
        figures.table4,
    )
