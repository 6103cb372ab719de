"""Where a step's time goes, what removing each cost would save, and what to do."""

from kit.diagnosis.diagnosing import diagnose
from kit.diagnosis.report import Diagnosis
from kit.diagnosis.timeline import timeline

__all__ = ["Diagnosis", "diagnose", "timeline"]
