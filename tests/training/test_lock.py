"""One process at a time in a run folder; nothing is lost without a word."""

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_run import run, small_config

import warm
from hypersphere.training import RunError, RunFolder, TrainConfig, load_net
from hypersphere.training.run.checkpoint import load_weights, save_weights
from hypersphere.training.run.lock import NAME, FolderInUse, FolderLock, is_alive
from hypersphere.training.run.records import changed_config, text_checksum


def test_a_second_lock_is_refused_with_who_holds_the_first(tmp_path):
    first, second = FolderLock(tmp_path), FolderLock(tmp_path)
    first.acquire()
    with pytest.raises(RunError, match=f"is in use: process {os.getpid()} on") as error:
        second.acquire()
    assert "since 20" in str(error.value) and "--run.folder" in str(error.value)
    first.release()
    second.acquire()
    second.release()
    assert not (tmp_path / NAME).exists()


HOLD = """
import sys, time
from hypersphere.training.run.lock import FolderLock
lock = FolderLock(sys.argv[1])
lock.acquire()
print("held", flush=True)
time.sleep(60)
"""


def test_a_killed_process_leaves_no_lock(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with warm.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(RunError, match=f"process {other.pid} on {socket.gethostname()}"):
            FolderLock(tmp_path).acquire()
        other.send_signal(signal.SIGKILL)
        other.wait()
    assert (tmp_path / NAME).exists() and not is_alive(other.pid)
    lock = FolderLock(tmp_path)
    lock.acquire()
    assert lock.holder()["pid"] == os.getpid()
    lock.release()


def test_whether_a_lock_is_held(tmp_path):
    lock = FolderLock(tmp_path)
    assert not lock.is_held()
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with warm.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        assert lock.is_held()
        other.send_signal(signal.SIGKILL)
        other.wait()
    assert not lock.is_held() and lock.path.exists()
    holder = {"host": socket.gethostname(), "pid": os.getpid(), "since": "2026-01-01 00:00:00"}
    lock.path.write_text(json.dumps(holder))  # the number now belongs to another process
    assert not lock.is_held()
    lock.path.write_text('{"host": [], "pid": {}}')
    assert not lock.is_held()
    with lock:
        assert FolderLock(tmp_path).is_held()


def test_a_comparison_waits_for_a_run_that_another_process_is_training(tmp_path, monkeypatch):
    from hypersphere.training import campaign

    run = campaign.PlannedRun("a", tmp_path / "a", tmp_path / "a.yaml")
    run.folder.mkdir()
    summary = {"seconds": 1.0, "last": {}}
    left, started = [campaign.FOLDER_TAKEN, 0], []

    class Worker:
        alone = False

        def __init__(self, one_thread):
            pass

        def begin(self, run):
            self.code = left.pop(0)
            started.append(self.code)
            if not self.code:
                (run.folder / "summary.json").write_text(json.dumps(summary))

        def has_ended(self):
            return True

        alive = has_ended

        def close(self, seconds):
            pass

    monkeypatch.setattr(campaign, "_Worker", Worker)
    looks = iter([True, True, False, False])
    monkeypatch.setattr(FolderLock, "is_held", lambda self: next(looks))
    found = campaign.run_all([run])
    assert found[run.folder].summary == summary and started == [campaign.FOLDER_TAKEN, 0]
    assert next(looks, None) is None


def gone_process():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    return gone.pid


def test_the_lock_of_a_process_that_is_gone_is_taken_over(tmp_path):
    """Its child may still hold the file open."""
    child = FolderLock(tmp_path)
    child.acquire()
    holder = {"host": socket.gethostname(), "pid": gone_process(), "since": "2026-01-01 00:00:00"}
    (tmp_path / NAME).write_text(json.dumps(holder))
    lock = FolderLock(tmp_path)
    lock.acquire()
    assert lock.holder()["pid"] == os.getpid()
    child.release()  # not its file any more
    assert (tmp_path / NAME).exists()
    lock.release()


@pytest.fixture
def busy_folder(tmp_path, monkeypatch):
    """A folder that somebody keeps locked, as the command `flock` does."""
    monkeypatch.setattr("hypersphere.training.run.lock.WAIT_FOR_FOLDER", 0.05)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield tmp_path
    os.close(descriptor)


def test_a_folder_that_somebody_keeps_locked_can_be_trained_in(busy_folder):
    first = FolderLock(busy_folder)
    first.acquire()
    with pytest.raises(FolderInUse, match=f"process {os.getpid()} on .* is training in it"):
        FolderLock(busy_folder).acquire()
    first.release()
    holder = {"host": socket.gethostname(), "pid": gone_process(), "since": "2026-01-01 00:00:00"}
    first.path.write_text(json.dumps(holder))  # of a killed process
    first.acquire()
    assert first.holder()["pid"] == os.getpid()
    first.release()


def test_the_file_of_a_lock_is_replaced_only_by_who_has_the_folder(busy_folder):
    """Two that replace it at the same time would remove each other's."""
    child = FolderLock(busy_folder)
    child.acquire()
    holder = {"host": socket.gethostname(), "pid": gone_process(), "since": "2026-01-01 00:00:00"}
    child.path.write_text(json.dumps(holder))
    text = f"a process left by process {holder['pid']} on .* keeps it"
    with pytest.raises(FolderInUse, match=text):
        FolderLock(busy_folder).acquire()
    child.release()
    assert not child.path.exists()


def test_a_lock_that_is_just_taken_over_is_not_taken_away(tmp_path, monkeypatch):
    """The file still names the process that is gone while the next one writes its own name."""
    holder = {"host": socket.gethostname(), "pid": gone_process(), "since": "2026-01-01 00:00:00"}
    (tmp_path / NAME).write_text(json.dumps(holder))
    taken, first = threading.Event(), FolderLock(tmp_path)

    def slow(form):
        taken.set()
        time.sleep(0.3)
        return "now"

    with monkeypatch.context() as patched:
        patched.setattr("hypersphere.training.run.lock.time.strftime", slow)
        thread = threading.Thread(target=first.acquire)
        thread.start()
        assert taken.wait(10)
        with pytest.raises(RunError, match="is in use"):
            FolderLock(tmp_path).acquire()
        thread.join()
    assert first.is_held()
    first.release()


def test_training_and_resuming_hold_the_lock(tmp_path):
    lock = FolderLock(tmp_path)
    lock.acquire()
    for resume in (False, True):
        with pytest.raises(RunError, match="is training in it"):
            run(small_config(), tmp_path, resume)
    lock.release()
    run(small_config(), tmp_path)
    assert not (tmp_path / NAME).exists()


class Remove:
    def __init__(self, what):
        self.what = what

    def after_update(self, run):
        if run.step == 2:
            path = run.folder.path / self.what
            path.unlink() if path.is_file() else shutil.rmtree(path)


@pytest.mark.parametrize("what", ["metrics.jsonl", "", "checkpoints", "run.json", "config.yaml"])
def test_what_is_removed_during_training_stops_the_run(tmp_path, what, monkeypatch):
    from hypersphere.training import job

    original = job.prepare

    def prepare(config, fabric):
        parts = original(config, fabric)
        parts.hooks.append(Remove(what))
        return parts

    monkeypatch.setattr(job, "prepare", prepare)
    train = TrainConfig(steps=6, log_every=1, test_every=6, checkpoint_every=4, quiet=True)
    with pytest.raises(RunError, match=r"was removed (or replaced )?during|its folder is gone"):
        job.train(small_config(train=train), tmp_path / "a", config_text="seed: 0\n")
    if not what:
        assert not (tmp_path / "a").exists()


def test_a_replaced_log_is_noticed(tmp_path):
    record = RunFolder(tmp_path)
    record.log(step=1)
    record.metrics.unlink()
    record.metrics.write_text("another\n")
    with pytest.raises(RunError, match="was removed or replaced during training"):
        record.log(step=2)
    record.close()


# --- checksums ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    model = {"name": "mlp", "widths": [6, 5]}
    run(small_config(model=model, rotate={"method": "cayley"}), folder)
    return folder


FILES = ["checkpoints/step-00000012", "checkpoints/best", "folded.safetensors"]


@pytest.mark.parametrize("place", FILES)
def test_weights_that_were_changed_are_refused(trained, tmp_path, place):
    folder = shutil.copytree(trained, tmp_path / "run")
    path = folder / place
    file = path if path.is_file() else path / "model.safetensors"
    assert load_weights(file).keys()
    save_file({k: -v if v.is_floating_point() else v for k, v in load_file(file).items()}, file)
    with pytest.raises(RunError, match="is damaged or was changed after it was written"):
        load_net(folder, path)
    config = small_config(model={"name": "mlp", "widths": [6, 5]})
    config.train.init_from = str(path)
    with pytest.raises(RunError, match="is damaged or was changed after it was written"):
        run(config, tmp_path / "other")


def test_a_long_config_is_known_again_and_a_change_at_its_end_is_told(tmp_path):
    path, text = tmp_path / "config.yaml", "# one of very many lines\n" * 100_000
    details = {"config_checksums": [text_checksum(text)]}
    path.write_text(text, encoding="utf-8", newline="\n")
    assert changed_config(path, details) == ""
    path.write_text(text + "train: {}\n", encoding="utf-8", newline="\n")
    assert "was changed after the run wrote it" in changed_config(path, details)


def test_commands_refuse_weights_that_were_changed(trained, tmp_path, capsys):
    from hypersphere.cli import main

    folder = shutil.copytree(trained, tmp_path / "run")
    for place, weights in (("step-00000012", "last"), ("best", "best")):
        file = folder / "checkpoints" / place / "model.safetensors"
        changed = {k: -v if v.is_floating_point() else v for k, v in load_file(file).items()}
        save_file(changed, file)
        words = ["evaluate", "classification", str(folder), "--weights", weights, "--quiet"]
        assert main(words) != 0
        assert "checksum differs from the recorded one" in capsys.readouterr().err


def test_old_folders_without_checksums_still_load(trained, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "run")
    for file in folder.rglob("*.crc32"):
        file.unlink()
    assert load_net(folder, "best").training is False
    assert load_weights(folder / "folded.safetensors")


def test_a_checksum_follows_its_file(tmp_path):
    file = tmp_path / "w.safetensors"
    for value in (1.0, 2.0):
        save_weights(file, {"w": torch.full((3,), value)})
        assert load_weights(file)["w"][0] == value
    save_weights(file, {"w": torch.zeros(3)}, checksum=False)  # no checksum of others stays
    assert not (tmp_path / "w.safetensors.crc32").exists() and len(load_weights(file)["w"]) == 3
