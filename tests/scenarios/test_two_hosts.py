"""Two hosts on a bad network, as network namespaces of this machine: `benchmarks/two_hosts.py` has the faults."""

import importlib

import pytest

from tests.helpers import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def two_hosts():
    """The script, as a module; skips where there can be no two hosts."""
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(ROOT / "benchmarks")
        module = importlib.import_module("two_hosts")
    if (reason := module.why_not()) is not None:
        pytest.skip(reason)
    return module


@pytest.fixture(scope="module")
def results(two_hosts, tmp_path_factory):
    """What the runs did, by fault."""
    return {each["fault"]: each for each in two_hosts.all_faults(tmp_path_factory.mktemp("hosts"), [*two_hosts.FAULTS])}


NAMES = (
    *("none", "link cut for good", "coordinator killed", "link cut for 5 s", "other host killed", "link cut for 20 s"),
    *("2% of packets lost, 10 ms", "clock a day ahead", "50 ms each way"),
)


@pytest.mark.parametrize("name", NAMES)
def test_a_run_goes_on_or_ends_in_a_line_and_resumes_to_the_same_numbers(two_hosts, results, name):
    fault, result = two_hosts.FAULTS[name], results[name]
    if "skipped" in result:
        pytest.skip(result["skipped"])
    assert result["same_numbers"]
    if fault.goes_on:
        assert result["codes"] == [0, 0], result["said"]
        return
    codes = [-9 if number == fault.killed else 4 for number in range(2)]
    assert result["codes"] == codes, result["said"]
    assert result["seconds"] < two_hosts.BOUND
    assert result["resumed"] == [0, 0]
    for code, said in zip(codes, result["said"], strict=True):
        if code == 4:
            assert "another process of this run has ended" in said.splitlines()[-1]


def test_all_faults_are_tried(two_hosts):
    assert [*two_hosts.FAULTS] == [*NAMES]
