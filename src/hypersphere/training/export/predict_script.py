"""The script that is exported beside a model; it needs onnxruntime, numpy and Pillow.

There are three, each for one question: who of the gallery is it, is it the same person, which
trained class is nearest? What is exported decides which of them goes with it. Each has 20 lines at
most, to be read and changed; what is data stands in the files beside it. Where there is no
threshold, nobody is accepted. Exit codes are those of `hypersphere gallery identify`.
"""

from __future__ import annotations

__all__ = ["NEAREST_CLASS", "PAIR", "SEARCH"]

_PREDICT = """\
import json, pathlib, sys, numpy as np, onnxruntime, PIL.Image, PIL.ImageOps

here = pathlib.Path(__file__).resolve().parent
how, rule = (json.loads((here / f"{n}.json").read_bytes()) for n in ("preprocessing", "decision"))
model = onnxruntime.InferenceSession(here / "model.onnx", providers=["CPUExecutionProvider"])

def predict(path):
    picture = PIL.ImageOps.exif_transpose(PIL.Image.open(path))
    picture = picture.convert(how["modes"][picture.mode]).resize(how["size"], how["resampling"])
    x = (np.asarray(picture).reshape(how["shape"]).transpose(2, 0, 1) - how["mean"]) / how["std"]
    return model.run(["OUTPUT"], {"pictures": np.float32([x])})[0][0]

"""

SEARCH = (
    '"""python predict.py PICTURE ...: who is it? exit code 3: some are nobody, 1: unreadable"""\n'
    + _PREDICT.replace("OUTPUT", "unit_features")
    + """\
if __name__ == "__main__":
    known, least, codes = np.load(here / "gallery.npz"), rule["search"], [0]
    for path in sys.argv[1:] or sys.exit("usage: python predict.py PICTURE ..."):
        try:
            score, name = max(zip(known["features"] @ predict(path), known["names"]))
            codes.append(0 if least and score >= least["value"] else 3)
            print(f"{path}: {'unknown' if codes[-1] else name} ({score:.4f}; {rule['in_words']})")
        except Exception as error:  # Pillow raises many kinds
            codes.append(print(f"{path}: cannot be read as 8 bits ({error})", file=sys.stderr) or 1)
    sys.exit(1 if 1 in codes else max(codes))
"""
)

PAIR = (
    '"""python predict.py FIRST SECOND: are they the same person? exit code 3 if not"""\n'
    + _PREDICT.replace("OUTPUT", "unit_features")
    + """\
if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python predict.py FIRST SECOND")
    try:
        score, least = np.dot(*map(predict, sys.argv[1:])), rule["pair"]
    except Exception as error:  # Pillow raises many kinds
        sys.exit(f"{' or '.join(sys.argv[1:])} cannot be read as 8 bits ({error})")
    same = bool(least) and score >= least["value"]
    print(f"{'the same' if same else 'different'} ({score:.4f}; {rule['in_words']})")
    sys.exit(0 if same else 3)
"""
)

NEAREST_CLASS = (
    '"""python predict.py PICTURE ...: the nearest trained class; unknown people have one too"""\n'
    + _PREDICT.replace("OUTPUT", "scores")
    + """\
if __name__ == "__main__":
    code = 0
    for path in sys.argv[1:] or sys.exit("usage: python predict.py PICTURE ..."):
        try:
            best = predict(path).argmax()
            print(f"{path}: nearest trained class {rule['classes'][best]}")
        except Exception as error:  # Pillow raises many kinds
            code = print(f"{path}: cannot be read as 8 bits ({error})", file=sys.stderr) or 1
    sys.exit(code)
"""
)
