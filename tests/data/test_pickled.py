"""Pickles of arrays are read as data: nothing in them is called."""

import contextlib
import pickle
import pickletools
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rscfed_jax.data.pickled import ForbiddenError, read_pickled

CONTENT = {
    b"data": np.arange(24, dtype=np.uint8).reshape(4, 6),
    b"labels": [3, 0, 70_000, 2**40, -1],
    "filenames": [b"a.png", "b.png", ""],
    b"batch_label": b"training batch 1 of 5",
    b"columns": np.asfortranarray(np.arange(6, dtype=np.int32).reshape(2, 3)),
    b"more": (None, True, 0.5, (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)),
}


@pytest.mark.parametrize("protocol", [1, 2, 3, 4])
def test_it_reads_what_pickle_reads(protocol):
    content = pickle.dumps(CONTENT, protocol=protocol)
    expected, found = pickle.loads(content), read_pickled(content)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value, strict=True) if isinstance(value, np.ndarray) else None
        assert isinstance(value, np.ndarray) or found[key] == value


def test_it_reads_the_pickles_of_python_2():
    # As `cPickle.dumps({"labels": [6, 9], "data": array}, 2)` of Python 2.7 wrote it, with texts as byte strings.
    content = (
        b"\x80\x02}q\x01(U\x06labelsq\x02]q\x03(K\x06K\x09eU\x04dataq\x04cnumpy.core.multiarray\n_reconstruct\nq\x05"
        b"cnumpy\nndarray\nq\x06K\x00\x85U\x01b\x87Rq\x07(K\x01K\x02K\x02\x86cnumpy\ndtype\nq\x08U\x02u1K\x00K\x01\x87"
        b"Rq\x09(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x04\x01\x02\x03\x04tbu."
    )
    found = read_pickled(content)
    assert found[b"labels"] == [6, 9]
    np.testing.assert_array_equal(found[b"data"], np.array([[1, 2], [3, 4]], np.uint8), strict=True)


class Calls:
    """Unpickled, it would call a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("value", [Calls(eval, "1 / 0"), Calls(np.zeros, 10**12), Calls(np.ndarray, (2**40,))])
def test_nothing_is_called(value, protocol):
    with pytest.raises(ForbiddenError, match=r"asks (for|to call) .*never"):
        read_pickled(pickle.dumps({b"data": value}, protocol=protocol))


WRONG = {
    "nothing": b"",
    "no end": pickle.dumps(CONTENT)[:-1],
    "no dictionary": pickle.dumps([1, 2]),
    "a length beyond the end": b"\x80\x02}(U\x04dataT" + struct.pack("<i", 2**31 - 1) + b"abcu.",
    "an empty stack": b"\x80\x02ae.",
    "no mark": b"\x80\x02}u.",
    "tuples in tuples as a key": b"\x80\x02})" + b"\x85" * 100_000 + b"Ns.",
    "an array of objects": pickle.dumps({b"data": np.array([{}])}),
    "an array of floats": pickle.dumps({b"data": np.zeros(3)}),
    "a shape that its bytes are not": pickle.dumps({b"data": np.zeros((3, 7), np.uint8)}, 2).replace(
        b"K\x07", b"K\x08"
    ),
}


@pytest.mark.parametrize("which", WRONG)
def test_what_is_wrong_is_refused(which):
    with pytest.raises(ValueError, match=r"is damaged|never"):
        read_pickled(WRONG[which])


@given(st.data())
def test_any_change_of_a_byte_gives_arrays_or_a_refusal(data):
    content = bytearray(pickle.dumps(CONTENT, protocol=data.draw(st.sampled_from([2, 4]))))
    for _ in range(data.draw(st.integers(1, 5))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(
            st.integers(0, 255) | st.sampled_from([ord(each.code) for each in pickletools.opcodes])
        )
    with contextlib.suppress(ValueError):  # any other error would end a command with a traceback
        assert isinstance(read_pickled(bytes(content)), dict)
