"""A program of the warm process is what a new interpreter would have run, but for its imports."""

import os
import signal
import subprocess
import sys

import pytest

import warm

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere interpreters are new")


def python(*words, **options):
    return warm.run([sys.executable, *words], capture_output=True, text=True, timeout=60, **options)


def test_it_is_a_child_of_ours_that_has_imported_and_not_computed():
    code = (
        "import os, sys; print(os.getppid(), 'torch' in sys.modules, os.listdir('/proc/self/fd'), "
        "'hypersphere.commands.train' in sys.modules, len(os.listdir('/proc/self/task')))"
    )
    # Whatever other tests have put into the environment of this process since.
    said = python("-c", code, env=warm.warm_process().environment).stdout
    assert said == f"{os.getpid()} True ['0', '1', '2', '3'] True 1\n"


@pytest.mark.parametrize(
    "code",
    [
        "",
        "import sys; sys.exit(7)",
        "import sys; sys.exit(-2)",
        "import sys; sys.exit('why')",
        "raise ValueError('x')",
        "raise KeyboardInterrupt",
        "import os, time; os.kill(os.getpid(), 2); time.sleep(9)",
        "import os; os.kill(os.getpid(), 9)",
        "import os; os.kill(os.getpid(), 15)",
    ],
)
def test_it_ends_as_a_new_interpreter(code):
    new = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True)
    ours = python("-c", code)
    assert ours.returncode == new.returncode
    assert ours.stderr.splitlines()[-1:] == new.stderr.splitlines()[-1:]


def test_it_waits_for_threads_and_says_goodbye():
    code = (
        "import atexit, threading, time\natexit.register(print, 'goodbye')\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), print('done'))).start()\nprint('begun')"
    )
    assert python("-c", code).stdout.split() == ["begun", "done", "goodbye"]


def test_words_folder_environment_streams_and_session_are_those_asked_for(tmp_path):
    (tmp_path / "there.py").write_text(
        "import os, sys, beside\nif __name__ == '__main__':\n"
        "    print(sys.argv[1:], os.getcwd(), os.environ.get('ASKED'), sys.stdin.read(), "
        "os.getsid(0) == os.getpid())"
    )
    (tmp_path / "beside.py").write_text("")
    (tmp_path / "typed").write_text("typed")
    said = f"['a', 'b'] {tmp_path} yes typed True\n"
    place = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    for words, more in [
        (["-m", "there"], {}),
        (["there.py"], {}),
        (["-c", "import runpy; runpy.run_module('there', run_name='__main__')"], {}),
        (["-m", "there"], {"PYTHONPATH": place}),
    ]:
        with open(tmp_path / "typed") as typed:
            environment = {**os.environ, "ASKED": "yes", **more}
            options = {"cwd": tmp_path, "env": environment, "stdin": typed}
            done = python(*words, "a", "b", start_new_session=True, **options)
        assert done.stdout == said, done.stderr
    assert python("-c", "import os; print(os.environ.get('ASKED'))").stdout == "None\n"


def test_it_is_stopped_and_waited_for():
    command = [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(60)"]
    with warm.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "1\n" and child.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.01)
        child.send_signal(signal.SIGKILL)
        assert child.wait(60) == -9
    with pytest.raises(subprocess.TimeoutExpired):
        warm.run(command, capture_output=True, timeout=0.01)


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ([], {"env": {**os.environ, "OMP_NUM_THREADS": "3"}}),
        ([], {"env": {**os.environ, "PYTHONHASHSEED": "3"}}),
        (["-W", "error"], {}),
        ([], {"preexec_fn": lambda: None}),
    ],
)
def test_what_acts_before_a_program_begins_asks_for_a_new_interpreter(words, options):
    done = python(*words, "-c", "import sys; print('torch' in sys.modules)", **options)
    assert done.stdout == "False\n"


def test_what_opencv_sets_when_it_is_imported_asks_for_none():
    environment = {**os.environ, "LD_LIBRARY_PATH": "/nowhere"}
    code = "import os, sys; print('torch' in sys.modules, os.environ['LD_LIBRARY_PATH'])"
    assert python("-c", code, env=environment).stdout == "True /nowhere\n"


def test_a_dead_warm_process_is_told():
    process = warm.WarmProcess()
    process.process.kill()
    asked = {"args": [sys.executable, "-c", ""], "cwd": None, "env": None}
    with pytest.raises(RuntimeError, match="the warm process of the tests has ended"):
        process.fork({**asked, "start_new_session": False}, [0, 1, 2])
    process.close()
