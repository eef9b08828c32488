"""The script that is exported beside a model; it needs onnxruntime, numpy and Pillow."""

from __future__ import annotations

__all__ = ["PREDICT"]

PREDICT = '''\
"""python predict.py PICTURE ...: who it is, its nearest trained class, or is it the first again?"""
import json, pathlib, sys
import numpy as np, onnxruntime
from PIL import Image, ImageOps

here = pathlib.Path(__file__).resolve().parent
how, rule = (json.loads((here / f"{n}.json").read_bytes()) for n in ("preprocessing", "decision"))
model = onnxruntime.InferenceSession(here / "model.onnx", providers=["CPUExecutionProvider"])

def predict(path):
    """[unit feature, scores of the trained classes if they were exported] of a picture file."""
    picture = Image.open(path)
    if picture.mode[0] in "IF":  # converting would cut the values off
        raise ValueError(f"{picture.mode} pixels, not 8 bits per channel")
    picture = ImageOps.exif_transpose(picture) if how["orientation"] == "exif" else picture
    filter = Image.Resampling[how["resampling"].upper()]
    x = np.asarray(picture.convert(how["mode"]).resize(how["size"][::-1], filter)) * how["scale"]
    x = (x.reshape(*how["size"], -1).transpose(2, 0, 1) - how["mean"]) / how["std"]
    feature, *scores = model.run(None, {"pictures": np.float32([x, x[..., ::-1]])})
    feature = feature.ravel() if rule["flips"] == "concatenate" else feature[0]
    return [feature / np.linalg.norm(feature), *(both[0] for both in scores)]

if __name__ == "__main__":
    paths, gallery, codes = sys.argv[1:], here / "gallery.npz", {3}  # 3: nobody is known
    known = dict(np.load(gallery)) if gallery.exists() else {}
    pairs = not known and len(model.get_outputs()) == 1  # of the first picture with each other
    if len(paths) < 1 + pairs:
        print("usage: predict.py", "FIRST " * pairs + "PICTURE ...", file=sys.stderr)
        sys.exit(2)
    least = rule["pair" if pairs else "search"] or {"value": np.inf}  # no threshold: nobody
    for path in paths:
        try:
            feature, *scores = predict(path)
        except Exception as error:  # Pillow raises many kinds
            print(f"{path}: cannot be read ({error})", file=sys.stderr)
            codes.add(1)
            continue
        if known:
            score, name = max(zip(known["features"] @ feature, known["names"]))
            codes.add(0 if score >= least["value"] else 3)
            print(f"{path}: {name if score >= least['value'] else 'unknown'} ({score:.4f})")
        elif pairs:
            known = {"features": feature[None], "names": [f"same as {path}"]}
        else:  # the best of the trained classes: unknown people have one, too
            print(f"{path}: nearest trained class {rule['classes'][scores[0].argmax()]}")
            codes.add(0)
    sys.exit(1 if 1 in codes else min(codes))
'''
