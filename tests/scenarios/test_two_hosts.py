"""Two hosts on a bad network, as network namespaces of this machine: `benchmarks/two_hosts.py` has the faults."""

import importlib
import json

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


NAMES = (
    *("none", "link cut for good", "coordinator killed", "link cut for 5 s", "other host killed"),
    *("link cut for 20 s", "clock a day ahead"),
)


@pytest.fixture(scope="module")
def results(two_hosts, tmp_path_factory):
    """What the runs did, by fault; the script itself tries a few more."""
    return {each["fault"]: each for each in two_hosts.all_faults(tmp_path_factory.mktemp("hosts"), NAMES)}


@pytest.mark.parametrize("name", NAMES)
def test_a_run_goes_on_or_ends_in_a_line_and_resumes_to_the_same_numbers(two_hosts, results, name):
    fault, result = two_hosts.FAULTS[name], results[name]
    if "skipped" in result:
        pytest.skip(result["skipped"])
    assert result["same_numbers"]
    if fault.goes_on or (fault.goes_on is None and result["codes"] == [0, 0]):
        assert result["codes"] == [0, 0], result["said"]
        assert result["said"] == ["", ""]
        return
    codes = [-9 if number == fault.killed else 4 for number in range(2)]
    assert result["codes"] == codes, result["said"]
    assert result["seconds"] < two_hosts.BOUND
    assert result["resumed"] == [0, 0]
    for code, said in zip(codes, result["said"], strict=True):
        if code == 4:
            (line,) = said.splitlines()
            assert "another process of this run has ended" in line


def test_the_published_results_are_of_all_faults(two_hosts):
    published = json.loads((ROOT / "benchmarks" / "results" / "two_hosts.json").read_text())["result"]["faults"]
    assert [each["fault"] for each in published] == [*two_hosts.FAULTS]
    assert all(each["same_numbers"] for each in published if "skipped" not in each)
