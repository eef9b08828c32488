"""The script that is exported beside a model; it needs onnxruntime, numpy and Pillow."""

from __future__ import annotations

__all__ = ["PREDICT"]

PREDICT = '''\
"""python predict.py PICTURE ...: who it is, which class, or how alike it is to the first."""
import json, sys
from pathlib import Path
import numpy as np, onnxruntime
from PIL import Image, ImageOps

here = Path(__file__).resolve().parent
files = (here / f"{name}.json" for name in ("preprocessing", "decision"))
how, rule = (json.loads(file.read_text("utf-8")) for file in files)
session = onnxruntime.InferenceSession(here / "model.onnx", providers=["CPUExecutionProvider"])

def predict(path):
    """(unit feature, scores of the classes or None) of a picture file."""
    picture = ImageOps.exif_transpose(Image.open(path)).convert(how["mode"])
    picture = picture.resize(how["size"][::-1], Image.Resampling.BILINEAR)
    x = np.asarray(picture, np.float32).reshape(*how["size"], -1).transpose(2, 0, 1) / 255
    x = (x - np.float32(how["mean"])) / np.float32(how["std"])
    found = session.run(None, {"pictures": np.stack([x, x[..., ::-1]])})
    feature = found[0].ravel() if rule["flips"] == "concatenate" else found[0][0]
    return feature / np.linalg.norm(feature), found[1][0] if len(found) > 1 else None

def accepted(score, threshold):  # without a threshold nobody is accepted
    return threshold is not None and score >= threshold["value"]

def describe(path, first, gallery):
    """What to print of a picture, and whether it was recognized."""
    feature, scores = predict(path)
    if gallery is not None:
        best = (cosines := gallery["features"] @ feature).argmax()
        known = accepted(cosines[best], rule["search"])
        return f"{gallery['names'][best] if known else 'unknown'} ({cosines[best]:.4f})", known
    if scores is not None:  # the best of the trained classes, for a stranger, too
        return f"nearest trained class {rule['classes'][int(scores.argmax())]}", True
    alike = feature @ predict(first)[0]
    same = accepted(alike, rule["pair"])
    return f"{alike:.4f}, {'same' if same else 'not the same'}", same

if __name__ == "__main__":
    if len(sys.argv) < 2:
        print("usage: python predict.py PICTURE ...", file=sys.stderr)
        sys.exit(2)
    gallery = np.load(here / "gallery.npz") if (here / "gallery.npz").exists() else None
    failed, recognized = False, []
    for path in sys.argv[1:]:
        try:
            text, known = describe(path, sys.argv[1], gallery)
        except (OSError, ValueError) as error:
            failed = True
            print(f"{path}: cannot be read ({error})", file=sys.stderr)
            continue
        recognized.append(known)
        print(f"{path}: {text}")
    sys.exit(1 if failed else 0 if any(recognized) else 3)  # 3: nobody is known
'''
