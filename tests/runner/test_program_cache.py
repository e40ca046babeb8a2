"""The cache of compiled programs costs a compilation at worst, never a run."""

import errno
import fcntl
import json
import os
import subprocess
import sys
import time

import jax
import pytest

from rscfed_jax.runner import program_cache
from rscfed_jax.runner.program_cache import ENTRY, FORGOTTEN, MARK, ProgramCache, _guarded, is_left_out

KEY = "jit_f-0123456789abcdef"


@pytest.fixture
def cache(tmp_path):
    return ProgramCache(tmp_path / "xla")


def test_an_entry_is_read_as_it_was_written(cache):
    assert cache.get(KEY) is None
    cache.put(KEY, b"a program")
    cache.put(KEY, b"another process was first")
    assert cache.get(KEY) == b"a program"
    assert [path.name for path in cache._path.iterdir()] == [KEY + ENTRY]


@pytest.mark.parametrize("change", ["cut", "flipped", "empty", "foreign", "of another key"])
def test_a_damaged_or_foreign_entry_is_removed_and_written_again(cache, change):
    cache.put(KEY, b"a program")
    cache.put("other", b"a program")
    file = cache._path / f"{KEY}{ENTRY}"
    content = file.read_bytes()
    other = (cache._path / f"other{ENTRY}").read_bytes()
    flipped = content[:-1] + bytes([content[-1] ^ 1])
    changes = {"cut": content[:-3], "flipped": flipped, "empty": b"", "foreign": b"x" * 99, "of another key": other}
    file.write_bytes(changes[change])
    assert cache.get(KEY) is None
    cache.put(KEY, b"a program")
    assert cache.get(KEY) == b"a program"


def test_a_full_disk_costs_one_line_and_leaves_no_part(cache, monkeypatch, capsys):
    real = os.fsync

    def full(number):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    cache.put(KEY, b"a program")
    cache.put("another", b"a program")
    assert cache.get(KEY) is None
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"warning: compiled programs are not kept in {cache._path}: No space left on device" in said
    assert list(cache._path.iterdir()) == []
    monkeypatch.setattr(os, "fsync", real)
    cache.put(KEY, b"a program")
    assert cache.get(KEY) == b"a program"


def test_a_folder_that_cannot_be_made_costs_one_line(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    cache = ProgramCache(tmp_path / "file" / "xla")
    cache.put(KEY, b"a program")
    assert cache.get(KEY) is None
    assert capsys.readouterr().err.count("\n") == 1


def test_programs_are_not_taken_from_a_folder_that_everyone_can_write_to(tmp_path, capsys):
    ProgramCache(tmp_path / "xla").put(KEY, b"a program")
    assert (tmp_path / "xla").stat().st_mode & 0o777 == 0o700
    (tmp_path / "xla").chmod(0o777)
    assert ProgramCache(tmp_path / "xla").get(KEY) is None
    assert "everyone can write there" in capsys.readouterr().err


def test_parts_that_a_killed_process_left_are_removed_in_time(tmp_path):
    new, old = tmp_path / f".{KEY}.1.part", tmp_path / f".{KEY}.2.part"
    for part in (new, old):
        part.write_bytes(b"half")
    os.utime(old, (0, time.time() - 2 * FORGOTTEN))
    ProgramCache(tmp_path)
    assert list(tmp_path.iterdir()) == [new]


def mark_of(folder, number, content=b"", age=0.0):
    """What a process leaves that died while XLA worked on a program."""
    mark = folder / f"{KEY}.host.{number}{MARK}"
    mark.write_bytes(content)
    os.utime(mark, (0, time.time() - age))
    return mark


def test_a_program_that_crashed_xla_is_left_out_for_a_day(tmp_path):
    assert not is_left_out(tmp_path, KEY)
    mark_of(tmp_path, 1, b"Fatal Python error: Segmentation fault")
    assert is_left_out(tmp_path, KEY)
    assert not is_left_out(tmp_path, "another")
    mark = mark_of(tmp_path, 1, b"Fatal Python error: Segmentation fault", age=2 * FORGOTTEN)
    assert not is_left_out(tmp_path, KEY)
    assert not mark.exists()


def test_a_program_is_left_out_after_two_processes_died_without_a_word(tmp_path):
    mark_of(tmp_path, 1)
    assert not is_left_out(tmp_path, KEY)
    mark_of(tmp_path, 2)
    assert is_left_out(tmp_path, KEY)


def test_processes_that_are_still_at_work_are_not_dead(tmp_path):
    with mark_of(tmp_path, 1).open("rb") as one, mark_of(tmp_path, 2).open("rb") as two:
        for file in (one, two):
            fcntl.flock(file, fcntl.LOCK_EX)
        assert not is_left_out(tmp_path, KEY)
    assert is_left_out(tmp_path, KEY)


@pytest.fixture
def cache_here(tmp_path):
    """Tells JAX that its cache is here; the suite's own stays off."""
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    yield
    jax.config.update("jax_compilation_cache_dir", before)


@pytest.mark.usefixtures("cache_here")
def test_a_mark_is_there_while_xla_works_and_gone_after_it(tmp_path):

    def work(key, *arguments):
        assert [path.name.startswith(KEY) for path in tmp_path.iterdir()] == [True]
        assert not is_left_out(tmp_path, KEY)  # this process lives
        return key, arguments

    call = _guarded(work, without="nothing")
    assert call(KEY, 1, 2) == (KEY, (1, 2))
    with pytest.raises(ZeroDivisionError):
        _guarded(lambda key: 1 / 0, without=None)(KEY)
    assert list(tmp_path.iterdir()) == []
    mark_of(tmp_path, 1, b"Fatal Python error: Aborted")
    assert call(KEY) == "nothing"


def test_jax_has_the_parts_that_are_replaced():
    from jax._src import compilation_cache

    assert program_cache._install()
    assert compilation_cache.get_file_cache("/nowhere/x")[1] == "/nowhere/x"


def test_where_jax_has_other_parts_the_cache_is_left_out(monkeypatch):
    chosen = {}
    monkeypatch.setattr(jax.config, "update", chosen.__setitem__)
    monkeypatch.setitem(program_cache.PARTS, "a_part_of_the_future", None)
    program_cache.use_program_cache()
    assert chosen == {"jax_enable_compilation_cache": False}


PROGRAM = """
import json, sys
import jax, jax.numpy as jnp
from jax._src import compilation_cache, monitoring
from rscfed_jax.runner import program_cache
from rscfed_jax.runner.start import start_jax
events = []
monitoring.register_event_listener(lambda event, **_: events.append(event.rpartition("/")[2]))
start_jax()
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
if "abort" in sys.argv:
    import os
    program_cache.ProgramCache.get = lambda *_: os.abort()
result = jax.jit(lambda x: jnp.sin(x) @ x)(jnp.ones((8, 8)))
print(json.dumps([float(result.sum()), events.count("cache_hits")]))
"""


def start(folder, *arguments):
    """Exit code, and the result and hits of a process that compiles a small program."""
    environment = os.environ | {"XDG_CACHE_HOME": str(folder), "JAX_PLATFORMS": "cpu"}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, env=environment, check=False
    )
    return done.returncode, json.loads(done.stdout or "null")


@pytest.mark.slow
def test_a_second_start_reads_the_programs_and_one_that_crashes_is_compiled_the_next_time(tmp_path):
    code, [first, hits] = start(tmp_path)
    assert (code, hits) == (0, 0)
    code, [second, hits] = start(tmp_path)
    assert (code, second) == (0, first)
    assert hits > 0
    folder = tmp_path / "rscfed_jax" / "xla"
    assert all(path.name.endswith(ENTRY) for path in folder.iterdir())
    code, _ = start(tmp_path, "abort")
    assert code < 0
    [mark] = folder.glob(f"*{MARK}")
    assert b"Aborted" in mark.read_bytes()
    code, [third, fewer] = start(tmp_path)
    assert (code, third) == (0, first)
    assert fewer == hits - 1
    for entry in folder.glob(f"*{ENTRY}"):
        entry.write_bytes(entry.read_bytes()[:-10])
    code, [fourth, none] = start(tmp_path)
    assert (code, fourth, none) == (0, first, 0)
