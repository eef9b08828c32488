"""A trained run as a folder that needs neither torch nor this package: ONNX, data, a card."""

from .bundle import Exported, export_run

__all__ = ["Exported", "export_run"]
