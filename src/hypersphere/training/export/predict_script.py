"""The script that is exported beside a model; it needs onnxruntime, numpy and Pillow.

There are three, each for one question: who of the gallery is it, is it the same person, which
trained class is nearest? What is exported decides which of them goes with it. Where there is no
threshold, nobody is accepted. Exit codes are those of `hypersphere gallery identify`.
"""

from __future__ import annotations

__all__ = ["NEAREST_CLASS", "PAIR", "SEARCH"]

_PICTURE = """\
import json, pathlib, sys, numpy as np, onnxruntime, PIL.Image, PIL.ImageOps

here = pathlib.Path(__file__).resolve().parent
how, rule = (json.loads((here / f"{n}.json").read_bytes()) for n in ("preprocessing", "decision"))
model = onnxruntime.InferenceSession(here / "model.onnx", providers=["CPUExecutionProvider"])

def predict(path):
    picture = PIL.ImageOps.exif_transpose(PIL.Image.open(path))
    if picture.mode[0] in "IF":  # converting would cut the values off
        raise ValueError(f"{picture.mode} pixels, not 8 bits per channel")
    method = PIL.Image.Resampling[how["resampling"].upper()]
    x = np.asarray(picture.convert(how["mode"]).resize(how["size"][::-1], method)) * how["scale"]
    x = (x.reshape(*how["size"], -1).transpose(2, 0, 1) - how["mean"]) / how["std"]
"""

_FEATURE = """\
    feature = model.run(["features"], {"pictures": np.float32([x])})[0][0]
    return feature / np.linalg.norm(feature)

"""

SEARCH = (
    '"""python predict.py PICTURE ...: who is it? exit code 3: some are nobody, 1: unreadable"""\n'
    + _PICTURE
    + _FEATURE
    + """\
if __name__ == "__main__":
    known, least, codes = np.load(here / "gallery.npz"), rule["search"], [0]
    said = f"accepted from {least['value']:.4f} on" if least else "no threshold: nobody is accepted"
    for path in sys.argv[1:] or sys.exit("usage: python predict.py PICTURE ..."):
        try:
            score, name = max(zip(known["features"] @ predict(path), known["names"]))
            codes.append(0 if least and score >= least["value"] else 3)
            print(f"{path}: {'unknown' if codes[-1] else name} ({score:.4f}; {said})")
        except Exception as error:  # Pillow raises many kinds
            codes.append(print(f"{path}: cannot be read ({error})", file=sys.stderr) or 1)
    sys.exit(1 if 1 in codes else max(codes))
"""
)

PAIR = (
    '"""python predict.py FIRST SECOND: are they the same person? exit code 3 if not"""\n'
    + _PICTURE
    + _FEATURE
    + """\
if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python predict.py FIRST SECOND")
    try:
        score, least = np.dot(*map(predict, sys.argv[1:])), rule["pair"]
    except Exception as error:  # Pillow raises many kinds
        sys.exit(f"{' or '.join(sys.argv[1:])} cannot be read ({error})")
    said = least and f"same from {least['value']:.4f} on, at FAR {least['far']:g}"
    answer = "the same" if least and score >= least["value"] else "different"
    print(f"{answer} ({score:.4f}; {said or 'no threshold: nobody is accepted'})")
    sys.exit(0 if answer == "the same" else 3)
"""
)

NEAREST_CLASS = (
    '"""python predict.py PICTURE ...: the nearest trained class; unknown people have one too"""\n'
    + _PICTURE
    + """\
    feature, scores = model.run(None, {"pictures": np.float32([x])})
    return feature[0] / np.linalg.norm(feature[0]), scores[0]

if __name__ == "__main__":
    code = 0
    for path in sys.argv[1:] or sys.exit("usage: python predict.py PICTURE ..."):
        try:
            best = predict(path)[1].argmax()
            print(f"{path}: nearest trained class {rule['classes'][best]}")
        except Exception as error:  # Pillow raises many kinds
            code = print(f"{path}: cannot be read ({error})", file=sys.stderr) or 1
    sys.exit(code)
"""
)
