"""How much memory there is: free memory, control groups of both versions, and the address space."""

import resource

import pytest

from rscfed_jax.runner import memory
from rscfed_jax.runner.memory import GIB, Room, is_out_of_memory, memory_of_the_host, room_left

FREE = "MemTotal: 999 kB\nMemAvailable: 8388608 kB\n"  # 8 GiB
NO_LIMIT = "9223372036854771712"


def machine(tmp_path, files):
    """The root of a machine with these files."""
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(str(content))
    return tmp_path


def test_free_memory_counts_where_nothing_else_limits(tmp_path):
    assert room_left(machine(tmp_path, {"proc/meminfo": FREE})) == Room(8 * GIB, "free on this machine")
    assert room_left(tmp_path / "nothing").bytes == float("inf")


def test_control_groups_of_the_second_version_count_with_all_above(tmp_path):
    files = {
        "proc/meminfo": FREE,
        "proc/self/cgroup": "0::/job/step\n",
        "sys/fs/cgroup/job/step/memory.max": "max\n",
        "sys/fs/cgroup/job/memory.max": 4 * GIB,
        "sys/fs/cgroup/job/memory.current": 3 * GIB,
        "sys/fs/cgroup/job/memory.stat": f"anon 5\ninactive_file {GIB}\n",  # which the kernel can do without
    }
    assert room_left(machine(tmp_path, files)) == Room(2 * GIB, "left by the limit of the control group")
    assert memory_of_the_host(tmp_path) <= 4 * GIB


def test_control_groups_of_the_first_version_count(tmp_path):
    files = {
        "proc/meminfo": FREE,
        "proc/self/cgroup": "9:name=systemd:/\n4:memory:/job\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": NO_LIMIT,
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": 2 * GIB,
        "sys/fs/cgroup/memory/job/memory.usage_in_bytes": GIB,
        "sys/fs/cgroup/memory/job/memory.stat": "total_inactive_file 0\n",
    }
    assert room_left(machine(tmp_path, files)).bytes == GIB
    assert memory_of_the_host(tmp_path) == 2 * GIB


def test_the_address_space_counts_and_must_be_large_enough_for_jax(tmp_path, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (3 * GIB, 3 * GIB))
    root = machine(tmp_path, {"proc/meminfo": FREE, "proc/self/statm": f"{GIB // resource.getpagesize()} 1 1"})
    assert room_left(root) == Room(2 * GIB - memory.COMPILER, "left by the limit of the address space, ulimit -v")
    memory.check_address_space()
    monkeypatch.setattr(resource, "getrlimit", lambda which: (GIB, GIB))
    with pytest.raises(MemoryError, match=r"JAX needs at least 2 GiB of address space, and `ulimit -v` allows 1.00"):
        memory.check_address_space()


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (MemoryError(), True),
        (OSError(12, "Cannot allocate memory"), True),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 123 bytes."), True),
        (RuntimeError("can't start new thread"), True),
        (RuntimeError("INTERNAL: something else"), False),
        (ValueError("RESOURCE_EXHAUSTED"), False),
        (OSError(28, "No space left on device"), False),
    ],
)
def test_errors_that_say_so(error, is_one):
    assert is_out_of_memory(error) == is_one
