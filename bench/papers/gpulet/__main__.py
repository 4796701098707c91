"""gpulet's figures: `python -m bench.papers.gpulet figure12`."""

from bench.harness import main
from bench.papers.gpulet import figure14, figures

if __name__ == "__main__":
    main(
        figures.figure4,
        figures.figure5,
        figures.figure12,
        figures.figure13,
        figure14.figure14,
        figures.figure15,
        figures.figure16,
    )
