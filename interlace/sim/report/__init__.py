"""What a run was like, from its record: figures, tables of them, drawings."""

from interlace.sim.report.figures import ModelFigures, Report, report

__all__ = ["ModelFigures", "Report", "report"]
