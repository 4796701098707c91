"""DeepPlan's figures and tables: `python -m bench.papers.deepplan figure11`."""

from bench.harness import main
from bench.papers.deepplan import figures, serving

if __name__ == "__main__":
    main(
        figures.figure2,
        figures.figure5,
        figures.figure6,
        figures.figure11,
        figures.figure12,
        serving.figure13,
        serving.figure14,
        serving.figure15,
        figures.figure16,
        figures.table3,
        figures.table4,
    )
