"""DeepPlan's figures and tables: `python -m bench.papers.deepplan figure11`."""

from bench.harness import main
from bench.papers.deepplan import figures, serving

if __name__ == "__main__":
    main(
        figures.figure11,
        figures.figure12,
        serving.figure13,
        serving.figure15,
        figures.table3,
        figures.table4,
    )
