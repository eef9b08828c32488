"""Checkpoints: whole or absent, verified, and errors that say what to do."""

import errno
import os
import resource
import shutil
import stat

import pytest
import torch

from hypersphere.training.run import checkpoint as C
from hypersphere.training.run.checkpoint import RunError


def write(folder, step, keep=2):
    weights = {"w": torch.full((64, 64), float(step)), "n": torch.tensor(step)}
    return C.save_checkpoint(folder, step, weights, {"step": step, "m": torch.ones(3)}, keep)


def test_written_and_read(tmp_path):
    write(tmp_path, 7)
    step, weights, state = C.newest_checkpoint(tmp_path)
    assert step == 7 and state["step"] == 7 and int(weights["n"]) == 7
    assert (weights["w"] == 7).all()
    assert {p.name for p in (tmp_path / "step-00000007").iterdir()} == {C.MODEL, C.TENSORS, C.STATE}


def test_only_the_newest_stay(tmp_path):
    for step in range(5):
        write(tmp_path, step)
    assert [p.name for p in C.list_checkpoints(tmp_path)] == ["step-00000003", "step-00000004"]


def test_shared_and_strided_tensors(tmp_path):
    base = torch.arange(12.0).view(3, 4)
    C.save_weights(tmp_path / "a.safetensors", {"a": base, "b": base, "t": base.T, "r": base[1]})
    read = C.load_weights(tmp_path / "a.safetensors")
    for name, value in {"a": base, "b": base, "t": base.T, "r": base[1]}.items():
        assert torch.equal(read[name], value)


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("name", [C.MODEL, C.TENSORS, C.STATE])
@pytest.mark.parametrize("damage", [flip, lambda p: p.write_bytes(b""), lambda p: p.unlink()])
def test_damaged_newest_falls_back_and_says_so(tmp_path, name, damage):
    write(tmp_path, 1)
    damage(write(tmp_path, 2) / name)
    said = []
    step, _, _ = C.newest_checkpoint(tmp_path, said.append)
    assert step == 1
    assert len(said) == 1 and "step-00000002" in said[0] and "going back" in said[0]


def test_all_damaged_is_an_error(tmp_path):
    flip(write(tmp_path, 1) / C.MODEL)
    with pytest.raises(RunError, match="every checkpoint in .* is damaged"):
        C.newest_checkpoint(tmp_path, lambda message: None)


def test_half_written_folders_are_not_seen_and_are_swept_up(tmp_path):
    write(tmp_path, 1)
    shutil.copytree(tmp_path / "step-00000001", tmp_path / ".step-00000002.99")
    assert C.newest_checkpoint(tmp_path)[0] == 1
    write(tmp_path, 3)
    assert not list(tmp_path.glob(".step*"))


def test_file_size_limit_leaves_the_last_checkpoint(tmp_path):
    """A real failing write: the kernel refuses files above 4 kB."""
    write(tmp_path, 1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(RunError, match="continue with --resume"):
            write(tmp_path, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert C.newest_checkpoint(tmp_path)[0] == 1
    assert not list(tmp_path.glob(".step*"))


def test_full_disk_is_named(tmp_path, monkeypatch):
    write(tmp_path, 1)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="no space left on the device .* free some space"):
        write(tmp_path, 2)
    assert C.newest_checkpoint(tmp_path)[0] == 1


def test_unwritable_folder_is_named(tmp_path):
    from hypersphere.training import RunFolder

    blocked = tmp_path / "file"
    blocked.write_text("a file where a folder should be")
    with pytest.raises(RunError, match="cannot write to"):
        RunFolder(blocked / "run")
    if os.geteuid() != 0:  # root writes everywhere
        tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
        try:
            with pytest.raises(RunError, match="permission denied"):
                RunFolder(tmp_path / "run")
        finally:
            tmp_path.chmod(stat.S_IRWXU)


def test_nothing_is_unpickled(tmp_path):
    """A pickle in place of a file is refused by its checksum, and never opened as one."""
    import pickle

    class Trap:
        def __reduce__(self):
            return (os._exit, (3,))

    path = write(tmp_path, 1)
    for name in (C.MODEL, C.TENSORS, C.STATE):
        (path / name).write_bytes(pickle.dumps(Trap()))
    with pytest.raises(RunError):
        C.load_checkpoint(path)


def test_a_renamed_checkpoint_is_no_other_step(tmp_path):
    path = write(tmp_path, 3)
    renamed = path.rename(path.with_name("step-00000001"))
    with pytest.raises(RunError, match="holds step 3: it was renamed, call it step-00000003"):
        C.load_checkpoint(renamed)
    with pytest.raises(RunError, match="holds step 3"):
        C.load_weights(renamed / C.MODEL)
    assert C.load_checkpoint(renamed.rename(path.with_name("kept")))[0] == 3
