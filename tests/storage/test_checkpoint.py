"""Checkpoints: complete or absent, never wrong; the newest few and the best are kept; errors are told in one line."""

import errno
import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import chex
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rscfed_jax.config import SettingError
from rscfed_jax.storage import checkpoint
from rscfed_jax.storage.checkpoint import Checkpoints, newest_common, read_arrays

NAMES = ("state", "model", "best")


def items_of(round_):
    """What a run would save: arrays of several types and shapes, which tell their round."""
    model = {
        "params.l1.kernel": np.linspace(0, round_, 30, dtype=np.float32).reshape(5, 6),
        "params.l1.bias": np.ones(0),
    }
    state = {"round": np.int32(round_), "rows": np.arange(4, dtype=np.int32), "log": np.frombuffer(b"{}", np.uint8)}
    return {"state": {name: np.asarray(leaf) for name, leaf in state.items()}, "model": model, "best": model}


def saved(directory, *rounds):
    """A directory with the checkpoints of some rounds."""
    with Checkpoints(directory) as checkpoints:
        for round_ in rounds:
            checkpoints.save(round_, items_of(round_), accuracy={})
    return Checkpoints(directory, read_only=True)


def names_in(directory):
    return sorted(path.name for path in Path(directory).iterdir())


def flip(path, place=0.5):
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 0x40
    path.write_bytes(content)


@pytest.mark.parametrize("round_", [-4, 0, 12])
def test_what_was_saved_is_read_back_to_the_bit(tmp_path, round_):
    checkpoints = saved(tmp_path / "checkpoints", round_)
    assert checkpoints.rounds() == {round_}
    assert names_in(tmp_path / "checkpoints") == [str(round_)]
    found = checkpoints.newest(NAMES, pytest.fail)
    assert found is not None
    assert found[0] == round_
    chex.assert_trees_all_equal(found[1], items_of(round_))
    chex.assert_trees_all_equal_dtypes(found[1], items_of(round_))


def test_the_newest_of_warm_up_and_rounds(tmp_path):
    checkpoints = saved(tmp_path, -10, -9, 3)
    assert checkpoints.rounds() == {-10, -9, 3}
    assert checkpoints.newest(["model"], pytest.fail)[0] == 3
    shutil.rmtree(tmp_path / "3")
    assert checkpoints.newest(["model"], pytest.fail)[0] == -9


def test_other_names_are_no_checkpoints(tmp_path):
    for name in ("007", "-0", "--1", "1e3", "٣", "5.orbax-checkpoint-tmp-17", ".5.1.part", "damaged"):
        (tmp_path / name).mkdir()
    (tmp_path / "8").write_text("a file")
    assert Checkpoints(tmp_path, read_only=True).rounds() == set()
    assert Checkpoints(tmp_path / "nowhere", read_only=True).rounds() == set()


def test_a_checkpoint_appears_when_it_is_complete_while_the_run_goes_on(tmp_path, monkeypatch):
    savez, may_write, writes = np.savez, threading.Event(), threading.Event()

    def wait_then_save(file, **arrays):
        writes.set()
        assert may_write.wait(20)
        savez(file, **arrays)

    monkeypatch.setattr(np, "savez", wait_then_save)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(5, items_of(5), accuracy={})  # returns, though nothing can be written yet
        assert writes.wait(20)
        assert checkpoints.rounds() == set()
        assert names_in(tmp_path) == [f".5.{os.getpid()}.part"]
        may_write.set()
        checkpoints.wait()
        assert names_in(tmp_path) == ["5"]


def test_everything_is_on_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """After a power loss a directory that was renamed too early is there, and its files are empty."""
    done = []
    rename, fsync = Path.rename, os.fsync

    def note_sync(number):
        done.append(os.path.relpath(os.readlink(f"/proc/self/fd/{number}"), tmp_path))
        fsync(number)

    def note_rename(self, target):
        done.append(f"-> {target.name}")
        return rename(self, target)

    with Checkpoints(tmp_path) as checkpoints:
        monkeypatch.setattr(os, "fsync", note_sync)
        monkeypatch.setattr(Path, "rename", note_rename)
        checkpoints.save(7, items_of(7), accuracy={})
    part = f".7.{os.getpid()}.part"
    files = [place for name in NAMES for place in (f"{part}/{name}/arrays.npz", f"{part}/{name}")]
    assert done == [*files, part, "-> 7", "."]


def run_in_a_process(code, directory):
    start = (
        "import os, sys, time\nfrom pathlib import Path\nimport numpy as np\n"
        "from rscfed_jax.storage import checkpoint\nfrom rscfed_jax.storage.checkpoint import Checkpoints\n"
        "def kill(*_, **__): os.kill(os.getpid(), 9)\n"
        "items = {name: {'a': np.ones(9)} for name in ('state', 'model', 'best')}\n"
    )
    command = [sys.executable, "-c", start + code, str(directory)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("moment", "there"),
    [
        ("np.savez = kill", {1, 2, 3}),
        ("Path.rename = kill", {1, 2, 3}),
        ("checkpoint.shutil.rmtree = kill", {2, 3, 4}),  # round 1 is on its way out, and round 4 is complete
    ],
)
def test_a_kill_leaves_whole_checkpoints_alone(tmp_path, moment, there):
    saved(tmp_path, 1, 2, 3)
    code = f"with Checkpoints(sys.argv[1]) as c:\n    {moment}\n    c.save(4, items, accuracy={{}})"
    assert run_in_a_process(code, tmp_path).returncode == -signal.SIGKILL
    reader = Checkpoints(tmp_path, read_only=True)
    assert reader.rounds() == there
    assert all(reader.read(round_, NAMES, pytest.fail, put_aside=False) for round_ in there)
    left = [name for name in names_in(tmp_path) if name.startswith(".")]
    assert len(left) == 1  # a reader leaves it there: the run may be alive
    with Checkpoints(tmp_path) as writer:
        assert set(names_in(tmp_path)) == {str(round_) for round_ in there}
        writer.save(4, items_of(4), accuracy={})
    assert reader.newest(NAMES, pytest.fail)[0] == 4


def test_leftovers_of_version_0_1_are_removed_by_a_writer(tmp_path):
    saved(tmp_path, 5)
    for name in ("6.orbax-checkpoint-tmp", "7.orbax-checkpoint-tmp-1794906582", "tmpab12.orbax-checkpoint-tmp"):
        (tmp_path / name / "state").mkdir(parents=True)
    assert len(names_in(saved(tmp_path).directory)) == 1


def test_a_process_that_ends_does_not_wait_for_its_writer(tmp_path):
    code = (
        "np.savez = lambda *_, **__: time.sleep(100)\nc = Checkpoints(sys.argv[1])\n"
        "c.save(4, items, accuracy={})\nraise SystemExit(5)"
    )
    ended = run_in_a_process(code, tmp_path)
    assert (ended.returncode, ended.stderr) == (5, "")
    assert Checkpoints(tmp_path, read_only=True).rounds() == set()


DAMAGES = {
    "a changed byte": lambda place: flip(place / "state" / "arrays.npz"),
    "the first byte": lambda place: flip(place / "model" / "arrays.npz", 0.0),
    "a cut file": lambda place: os.truncate(place / "state" / "arrays.npz", 100),
    "an empty file": lambda place: os.truncate(place / "state" / "arrays.npz", 0),
    "a lost file": lambda place: (place / "best" / "arrays.npz").unlink(),
    "an empty directory": lambda place: (shutil.rmtree(place), place.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(tmp_path, damage):
    checkpoints = saved(tmp_path / "checkpoints", 2, 4)
    DAMAGES[damage](tmp_path / "checkpoints" / "4")
    said = []
    assert checkpoints.newest(NAMES, said.append)[0] == 2
    (line,) = said
    assert line.startswith(f"checkpoint {tmp_path}/checkpoints/4 is damaged and skipped: ")
    assert "\n" not in line
    assert names_in(tmp_path) == ["checkpoints"]
    for number in range(2):  # it happens to the same round again
        assert checkpoints.read(4, NAMES, said.append, put_aside=True) is None
        assert checkpoints.rounds() == {2}
        assert names_in(tmp_path / "damaged") == [f"4-{n}" for n in range(number + 1)]
        saved(tmp_path / "checkpoints", 4)
        DAMAGES[damage](tmp_path / "checkpoints" / "4")


def test_an_item_needs_nothing_but_its_own_file(tmp_path):
    """Version 0.1 left Orbax's files beside the arrays; and a damaged state does not keep a model from being read."""
    checkpoints = saved(tmp_path, 6)
    for place in (tmp_path / "6", *(tmp_path / "6" / name for name in NAMES)):
        (place / "commit_success.txt").write_text("Checkpoint commit was successful to 6")
    (tmp_path / "6" / "_CHECKPOINT_METADATA").write_text(
        '{"item_handlers": {"best": "rscfed_jax.arrays.ArraysHandler"}}'
    )
    chex.assert_trees_all_equal(checkpoints.newest(NAMES, pytest.fail), (6, items_of(6)))
    shutil.rmtree(tmp_path / "6" / "state")
    chex.assert_trees_all_equal(checkpoints.newest(["model"], pytest.fail), (6, {"model": items_of(6)["model"]}))


@pytest.mark.parametrize("mask", [0x04, 0xFF])
def test_every_changed_byte_is_noticed_or_harmless(tmp_path, mask):
    checkpoints = saved(tmp_path, 3)
    path = tmp_path / "3" / "model" / "arrays.npz"
    content, expected, noticed = path.read_bytes(), items_of(3)["model"], 0
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ mask]) + content[place + 1 :])
        found = checkpoints.read(3, ["model"], lambda text: None, put_aside=False)
        if found is None:
            noticed += 1
        else:
            chex.assert_trees_all_equal(found["model"], expected)
    assert noticed > len(content) // 2  # the rest are times and flags of the zip format


def test_a_changed_shape_is_noticed(tmp_path):
    """The reader of a smaller array would not come to the end of it, where its checksum is compared."""
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(3, {"model": {"a": np.ones((5, 6000), np.float32)}}, accuracy={})
    path = tmp_path / "3" / "model" / "arrays.npz"
    content = path.read_bytes()
    assert content.count(b"(5, 6000)") == 1
    path.write_bytes(content.replace(b"(5, 6000)", b"(1, 6000)"))
    said = []
    assert checkpoints.newest(["model"], said.append) is None
    assert "wrong checksum of a.npy" in said[0]


@given(content=st.binary(max_size=300), start=st.sampled_from([b"", b"PK\x03\x04"]))
def test_random_bytes_are_no_arrays(tmp_path_factory, content, start):
    path = tmp_path_factory.mktemp("random") / "arrays.npz"
    path.write_bytes(start + content)
    with pytest.raises(Exception):  # noqa: B017, PT011 - the reader of checkpoints takes any
        read_arrays(path)


class Evil:
    """Asks to be made by a function of its choice."""

    def __reduce__(self):
        """Called by pickle."""
        return pytest.fail, ("unpickled",)


def test_nothing_is_unpickled(tmp_path):
    checkpoints = saved(tmp_path, 3)
    assert b"unpickled" in pickle.dumps(Evil())
    np.savez(tmp_path / "3" / "model" / "arrays.npz", a=np.array([Evil()], dtype=object))
    assert checkpoints.read(3, ["model"], lambda text: None, put_aside=False) is None


@pytest.mark.parametrize(
    ("error", "said"),
    [(OSError(number, os.strerror(number)), os.strerror(number)) for number in (errno.EIO, errno.ESTALE, errno.EMFILE)]
    + [(MemoryError(), "not enough memory")],
)
def test_an_error_of_the_machine_is_not_taken_for_damage(tmp_path, monkeypatch, error, said):
    def fail(path, *, limited):
        raise error

    checkpoints = saved(tmp_path / "checkpoints", 3, 4)
    monkeypatch.setattr(checkpoint, "read_arrays", fail)
    with pytest.raises(SettingError, match=rf"--out {tmp_path}/checkpoints/4: cannot be read now: {said}"):
        newest_common([checkpoints], NAMES, pytest.fail)
    assert names_in(tmp_path) == ["checkpoints"]
    assert checkpoints.rounds() == {3, 4}


@pytest.mark.parametrize(
    ("rounds", "accuracy", "kept"),
    [
        ([3], {}, [3]),
        ([3, 6, 9, 12], {}, [6, 9, 12]),
        ([3, 6, 9, 12, 15, 18], {3: 0.5, 6: 0.9, 9: 0.2}, [6, 12, 15, 18]),
        ([3, 6, 9, 12, 15, 18], {3: 0.5, 4: 0.99, 6: 0.1, 18: 0.2}, [3, 12, 15, 18]),  # round 4 was not saved
        ([3, 6, 9, 12, 15], {15: 0.9, 3: 0.1}, [9, 12, 15]),
        ([-9, -6, -3, 0, 2], {0: 0.1, 2: 0.1}, [-3, 0, 2]),
    ],
)
def test_the_newest_and_the_best_are_kept(tmp_path, rounds, accuracy, kept):
    with Checkpoints(tmp_path) as checkpoints:
        for round_ in rounds:
            known = {evaluated: value for evaluated, value in accuracy.items() if evaluated <= round_}
            checkpoints.save(round_, items_of(round_), accuracy=known)
    assert names_in(tmp_path) == sorted(map(str, kept))
    assert checkpoints.newest(NAMES, pytest.fail)[0] == kept[-1]


def test_a_round_that_is_written_again_replaces_the_old_one(tmp_path):
    saved(tmp_path, 3, 4)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(4, items_of(5), accuracy={})
    assert names_in(tmp_path) == ["3", "4"]
    chex.assert_trees_all_equal(checkpoints.newest(NAMES, pytest.fail), (4, items_of(5)))


def test_newer_rounds_are_forgotten(tmp_path):
    saved(tmp_path, -3, 2, 5)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.forget_after(2)
        assert checkpoints.rounds() == {-3, 2}
        checkpoints.forget_after(-3)
    assert names_in(tmp_path) == ["-3"]


def cannot_be_written(tmp_path, why=""):
    return pytest.raises(SettingError, match=rf"^--out {tmp_path}: checkpoint cannot be written: {why}[^\n]*$")


def test_a_place_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "checkpoints").write_text("a file")
    with cannot_be_written(tmp_path, "File exists"):
        Checkpoints(tmp_path / "checkpoints")


def test_a_vanished_directory_is_reported_at_once(tmp_path):
    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        (tmp_path / "checkpoints").rmdir()
        with cannot_be_written(tmp_path, "No such file or directory"):
            checkpoints.save(1, items_of(1), accuracy={})
    assert names_in(tmp_path) == []


def test_a_full_disk_is_reported_and_what_was_saved_stays_valid(tmp_path):
    large = {name: {"a": np.arange(20_000)} for name in NAMES}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        checkpoints.save(1, items_of(1), accuracy={})
        checkpoints.wait()
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
        try:
            checkpoints.save(2, large, accuracy={})
            with cannot_be_written(tmp_path, "File too large"):
                checkpoints.wait()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert names_in(tmp_path / "checkpoints") == ["1"]  # what was begun is removed, and its space is free
        checkpoints.save(2, large, accuracy={})
    chex.assert_trees_all_equal(checkpoints.newest(NAMES, pytest.fail), (2, large))


@pytest.fixture
def failing(tmp_path, monkeypatch):
    """Checkpoints whose thread cannot write."""

    def fail(file, **arrays):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(np, "savez", fail)
    return Checkpoints(tmp_path)


def test_an_error_of_the_thread_comes_up_once_at_the_next_call(tmp_path, failing):
    full = "No space left on device"
    for call in (failing.wait, lambda: failing.save(2, {}, accuracy={}), lambda: failing.forget_after(0)):
        failing.save(1, items_of(1), accuracy={})
        with cannot_be_written(tmp_path.parent, full):
            call()
        failing.wait()
    assert names_in(tmp_path) == []


def test_an_error_of_the_thread_comes_up_at_the_end_but_hides_no_other(tmp_path, failing):
    with cannot_be_written(tmp_path.parent), failing:
        failing.save(1, items_of(1), accuracy={})
    failing.save(1, items_of(1), accuracy={})
    with pytest.raises(ZeroDivisionError), failing:
        raise ZeroDivisionError
    failing.wait()


def test_runs_resume_from_the_newest_checkpoint_that_is_valid_in_all(tmp_path):
    runs = [saved(tmp_path / name / "checkpoints", *rounds) for name, rounds in (("a", (4, 6, 8)), ("b", (4, 6, 7)))]
    model = {"model": items_of(6)["model"]}
    chex.assert_trees_all_equal(newest_common(runs, ["model"], pytest.fail), (6, [model, model]))
    flip(tmp_path / "b" / "checkpoints" / "6" / "state" / "arrays.npz")
    said = []
    round_, items = newest_common(runs, NAMES, said.append)
    assert round_ == 4
    chex.assert_trees_all_equal(items, [items_of(4)] * 2)
    assert len(said) == 1
    assert names_in(tmp_path / "b" / "damaged") == ["6-0"]
    assert runs[0].rounds() == {4, 6, 8}


def test_runs_without_a_checkpoint_in_common_are_refused_and_keep_theirs(tmp_path):
    runs = [saved(tmp_path / "a" / "checkpoints"), saved(tmp_path / "b" / "checkpoints", 20, 30)]
    expected = (
        f"--out {tmp_path}/b: the cells of this program share no valid checkpoint; "
        "run the command again to resume them separately"
    )
    with pytest.raises(SettingError) as error:
        newest_common(runs, NAMES, pytest.fail)
    assert str(error.value) == expected
    assert runs[1].rounds() == {20, 30}


def test_runs_with_damaged_checkpoints_alone_start_anew(tmp_path):
    runs = [saved(tmp_path / name / "checkpoints", 4, 6) for name in "ab"]
    for run in runs:
        for round_ in (4, 6):
            flip(run.directory / str(round_) / "state" / "arrays.npz")
    said = []
    assert newest_common(runs, NAMES, said.append) is None
    assert len(said) == 4
    assert newest_common(runs, NAMES, pytest.fail) is None
    assert newest_common([], NAMES, pytest.fail) is None
