"""`hypersphere align`: every crop has a file of its own."""

import numpy as np
import torch
from PIL import Image

from hypersphere.cli import main
from hypersphere.commands import align


def test_pictures_that_differ_in_their_ending_alone_keep_a_crop_each(tmp_path, monkeypatch, capsys):
    """a.jpg and a.png were both written to a.png, and counted as two."""
    photos = tmp_path / "photos" / "ada"
    photos.mkdir(parents=True)
    for value, name in enumerate(("a.jpg", "a.png", "a.jpg.bmp", "A.webp", "b.jpg")):
        Image.fromarray(np.full((8, 8, 3), 50 * value, np.uint8)).save(photos / name)

    def crops(shape, paths):
        values = [int(np.asarray(Image.open(path)).mean().round()) for path in paths]
        faces = torch.tensor(values, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, *shape)
        return faces, list(range(len(paths))), {}

    monkeypatch.setattr(align, "read_faces", crops)
    assert main(["align", str(tmp_path / "photos"), str(tmp_path / "out")]) == 0
    assert "aligned 5 of 5" in capsys.readouterr().out
    found = {
        p.name: int(np.asarray(Image.open(p)).mean()) for p in (tmp_path / "out/ada").iterdir()
    }
    assert len({name.lower() for name in found}) == 5  # also where case does not count
    assert found["a.png"] == 50 and found["b.png"] == 200
    assert {value // 50 for value in found.values()} == set(range(5))


def test_one_picture_is_aligned_like_a_folder(tmp_path, monkeypatch, capsys):
    """A visitor has to be aligned, too; only folders were taken."""
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "visitor.jpg")
    faces = torch.zeros(1, 3, 112, 96, dtype=torch.uint8)
    monkeypatch.setattr(align, "read_faces", lambda shape, paths: (faces, [0], {}))
    assert main(["align", str(tmp_path / "visitor.jpg"), str(tmp_path / "out")]) == 0
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"visitor.png", "alignment.json"}
    capsys.readouterr()
    assert main(["align", str(tmp_path / "nobody.jpg"), str(tmp_path / "out")]) == 1
    assert "no picture or folder of pictures at" in capsys.readouterr().err
