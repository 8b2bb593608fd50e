from .exporting import CheckpointExporter as CheckpointExporter
from .exporting import export_session as export_session
