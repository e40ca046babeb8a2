"""Model files: what is read out of them, and what is refused in one line."""

import pickle
import sys

import numpy as np
import pytest
import safetensors.numpy

from rscfed_jax.config import Config, SettingError
from rscfed_jax.config.files import write_json
from rscfed_jax.storage.model_file import check_stored, check_target, read_tensors, write_tensors

TENSORS = {"l1.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "l1.bias": np.zeros(2, np.float32)}


def test_counters_are_left_out_and_numbers_become_float32(tmp_path):
    tensors = {name: array.astype(np.float64) for name, array in TENSORS.items()}
    tensors["bn.num_batches_tracked"] = np.int64(3)
    safetensors.numpy.save_file({k: np.array(v) for k, v in tensors.items()}, tmp_path / "m.safetensors")
    read = read_tensors(tmp_path / "m.safetensors", setting="FILE")
    assert {name: array.dtype for name, array in read.items()} == dict.fromkeys(TENSORS, np.float32)
    np.testing.assert_array_equal(read["l1.weight"], TENSORS["l1.weight"])


@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize("nested", [False, True])
def test_a_published_file_holds_its_tensors_under_state_dict(tmp_path, prefix, nested):
    torch = pytest.importorskip("torch")
    state = {prefix + name: torch.from_numpy(array) for name, array in TENSORS.items()}
    state[prefix + "bn.num_batches_tracked"] = torch.tensor(5)
    optimizer = {"state": {0: {"momentum_buffer": torch.zeros(3)}}, "param_groups": [{"lr": 0.1}]}
    torch.save({"state_dict": state, "optimizers": [optimizer], "epoch": 3} if nested else state, tmp_path / "m.pth")
    read = read_tensors(tmp_path / "m.pth", setting="FILE")
    assert set(read) == set(TENSORS)
    np.testing.assert_array_equal(read["l1.weight"], TENSORS["l1.weight"])


class Evil:
    """Asks to be made by a function of its choice."""

    def __reduce__(self):
        """Called by pickle."""
        return print, ("loaded",)


def bad_safetensors(folder):
    good = safetensors.numpy.save(TENSORS)
    (folder / "truncated.safetensors").write_bytes(good[:-5])
    (folder / "header.safetensors").write_bytes(good[:20])
    (folder / "empty.safetensors").write_bytes(b"")
    (folder / "text.safetensors").write_text("hello, this is no model")
    (folder / "ints.safetensors").write_bytes(safetensors.numpy.save({"l1.weight": np.arange(3)}))
    (folder / "folder.safetensors").mkdir()


def bad_torch(folder, torch):
    torch.save({name: torch.from_numpy(array) for name, array in TENSORS.items()}, folder / "good.pt")
    good = (folder / "good.pt").read_bytes()
    (folder / "truncated.pt").write_bytes(good[: len(good) // 2])
    (folder / "empty.pt").write_bytes(b"")
    (folder / "text.pt").write_text("hello, this is no model")
    (folder / "class.pt").write_bytes(pickle.dumps({"l1.weight": Evil()}, protocol=2))
    (folder / "pickle.pt").write_bytes(pickle.dumps({"l1.weight": Evil()}))
    torch.save({"l1.weight": Evil()}, folder / "class.pth")
    torch.save({"l1.weight": torch.arange(3)}, folder / "ints.pt")
    torch.save({"l1.weight": 3.0}, folder / "number.pt")
    torch.save([1, 2], folder / "list.pt")
    torch.save({"l1.weight": torch.eye(3).to_sparse()}, folder / "sparse.pt")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("missing.safetensors", "cannot be read: No such file or directory"),
        ("folder.safetensors", "cannot be read: Is a directory"),
        ("truncated.safetensors", "is not a readable safetensors file"),
        ("header.safetensors", "is not a readable safetensors file"),
        ("empty.safetensors", "is not a readable safetensors file"),
        ("text.safetensors", "is not a readable safetensors file"),
        ("ints.safetensors", "tensor l1.weight holds int64 values, not floats"),
        ("missing.pt", "cannot be read: No such file or directory"),
        ("truncated.pt", "is not a readable PyTorch file"),
        ("empty.pt", "is not a readable PyTorch file"),
        ("text.pt", "is not a readable PyTorch file"),
        ("class.pt", "holds Python objects besides tensors, which are never loaded"),
        ("class.pth", "holds Python objects besides tensors, which are never loaded"),
        ("pickle.pt", "is not a readable PyTorch file"),
        ("ints.pt", "tensor l1.weight holds torch.int64 values, not floats"),
        ("number.pt", "l1.weight is not a tensor"),
        ("list.pt", "holds no state dict"),
        ("sparse.pt", "tensor l1.weight is sparse"),
    ],
)
def test_a_bad_file_is_refused_with_its_name_and_the_reason(tmp_path, capsys, name, said):
    bad_safetensors(tmp_path)
    if name.endswith((".pt", ".pth")):
        bad_torch(tmp_path, pytest.importorskip("torch"))
    with pytest.raises(SettingError) as caught:
        read_tensors(tmp_path / name, setting="init_from")
    assert str(caught.value) == f"--init-from {tmp_path / name}: {said}"
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("m.npz", "must end in .safetensors, .pt, .pth"),
        ("nowhere/m.safetensors", "must be in an existing folder"),
        ("there.safetensors", "already exists; add --force to overwrite it"),
    ],
)
def test_a_target_that_cannot_be_written_is_refused(tmp_path, name, said):
    (tmp_path / "there.safetensors").write_text("mine")
    with pytest.raises(SettingError, match=f"{name}: {said}"):
        check_target(tmp_path / name, setting="FILE", overwrite=False)


def test_where_torch_is_missing_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "m.pt").write_bytes(b"anything")
    with pytest.raises(SettingError, match=r"m.pt: needs PyTorch: pip install 'rscfed-jax\[torch\]'"):
        read_tensors(tmp_path / "m.pt", setting="FILE")
    with pytest.raises(SettingError, match=r"rscfed-jax\[torch\]"):
        write_tensors(tmp_path / "new.pt", TENSORS, setting="FILE")
    assert not (tmp_path / "new.pt").exists()


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    (tmp_path / "m.safetensors").write_text("old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", fail)
    with pytest.raises(SettingError, match="cannot be written: No space left on device"):
        write_tensors(tmp_path / "m.safetensors", TENSORS, setting="FILE")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_what_is_stored_is_a_run_a_checkpoint_or_a_model_file(tmp_path):
    run = tmp_path / "run.safetensors"  # a directory, whatever its name
    (run / "checkpoints" / "-4").mkdir(parents=True)
    write_json(run / "config.json", Config().to_dict())
    write_tensors(tmp_path / "m.safetensors", TENSORS, setting="FILE")
    for path in (run, run / "checkpoints" / "-4", tmp_path / "m.safetensors"):
        check_stored(path, setting="PATH")
    with pytest.raises(SettingError, match="cannot be read: No such file"):
        check_stored(tmp_path / "nowhere.safetensors", setting="PATH")
    for path in (tmp_path, run / "checkpoints" / "5", tmp_path / "nowhere.npz"):
        with pytest.raises(SettingError) as error:
            check_stored(path, setting="PATH")
        assert str(error.value) == (
            f"PATH {path}: is not a run directory with config.json and checkpoints, nor a checkpoint of one, "
            "nor a model file (.safetensors, .pt, .pth)"
        )
