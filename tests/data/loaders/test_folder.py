"""Folders of pictures."""

import shutil

import pytest
from PIL import Image

from rscfed_jax.config import Config, SettingError
from rscfed_jax.data.federation import build_federation
from rscfed_jax.data.load import load_dataset
from tests.data.picture_files import write_classes, write_picture

pytestmark = pytest.mark.usefixtures("cache")
SEED = 1  # both classes are in its test set


def test_one_folder_per_class_is_split_80_to_20_and_resized_as_pillow_does(tmp_path):
    folder = write_classes(tmp_path / "pets")
    data = load_dataset("folder:pets", data_dir=str(tmp_path), image_size=16, seed=SEED)
    assert data.train_images.shape == (16, 20, 20, 3)
    assert data.test_images.shape == (4, 16, 16, 3)
    assert data.class_names == ("cat", "dog")
    expected = {
        Image.open(path).resize((16, 16), Image.Resampling.BILINEAR).tobytes(): path.parent.name
        for path in folder.rglob("*.png")
    }
    assert [expected[image.tobytes()] for image in data.test_images] == [
        data.class_names[label] for label in data.test_labels
    ]


def test_train_and_test_folders_are_the_split(tmp_path):
    write_classes(tmp_path / "pets" / "train", count=3)
    write_classes(tmp_path / "pets" / "test", count=2)
    data = load_dataset(f"folder:{tmp_path}/pets", image_size=16, seed=SEED)
    assert (data.train_labels.tolist(), data.test_labels.tolist()) == ([0, 0, 0, 1, 1, 1], [0, 0, 1, 1])
    write_picture(tmp_path / "pets" / "test" / "newt" / "1.png")
    with pytest.raises(SettingError, match="test holds the class 'newt', which train does not have"):
        load_dataset(f"folder:{tmp_path}/pets", image_size=16, seed=SEED)


def test_folders_without_pictures_are_refused(tmp_path):
    with pytest.raises(SettingError, match="no such folder"):
        load_dataset(f"folder:{tmp_path}/nowhere")
    with pytest.raises(SettingError, match="at least two classes, but holds 0"):
        load_dataset(f"folder:{tmp_path}")
    folder = write_classes(tmp_path / "pets")
    (folder / "unicorn").mkdir()
    with pytest.raises(SettingError, match="the class 'unicorn' holds no picture"):
        load_dataset(f"folder:{folder}")


def write_clients(folder):
    """Two clients: one holds both classes, one of each only one."""
    write_classes(folder / "clients" / "anna", count=5)
    for number in range(5):
        write_picture(folder / "clients" / "ben" / "newt" / f"{number}.png", seed=number)
    return folder


def test_a_folder_for_each_client_says_who_holds_what(tmp_path):
    folder = write_clients(tmp_path / "pets")
    for name in ("dog", "newt"):
        write_picture(folder / "test" / name / "1.png")
    config = Config(dataset="folder:pets", data_dir=tmp_path, image_size=16)
    assert (config.clients, config.partition) == (2, "natural")
    data = load_dataset("folder:pets", data_dir=tmp_path, image_size=16)
    assert data.class_names == ("cat", "dog", "newt")
    assert data.train_labels.tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert data.train_clients.tolist() == ["anna"] * 10 + ["ben"] * 5
    assert data.test_labels.tolist() == [1, 2]
    federation = build_federation(config)
    assert (federation.client_names, federation.class_counts.tolist()) == (("anna", "ben"), [[5, 5, 0], [0, 0, 5]])


def test_without_a_test_folder_a_fifth_of_each_client_is_held_out(tmp_path):
    write_clients(tmp_path / "pets")
    data = load_dataset("folder:pets", data_dir=tmp_path, image_size=16)
    assert data.train_clients.tolist() == ["anna"] * 8 + ["ben"] * 4
    assert len(data.test_labels) == 3


def test_folders_of_clients_that_hold_nothing_are_refused(tmp_path):
    folder = tmp_path / "pets"
    (folder / "clients").mkdir(parents=True)
    with pytest.raises(SettingError, match="clients must hold a folder for each client"):
        load_dataset(f"folder:{folder}")
    write_clients(folder)
    (folder / "clients" / "cleo" / "cat").mkdir(parents=True)
    with pytest.raises(SettingError, match="the client 'cleo' holds no picture"):
        load_dataset(f"folder:{folder}")
    write_picture(folder / "clients" / "cleo" / "cat" / "1.png")
    (folder / "clients" / "cleo" / "unicorn").mkdir()
    with pytest.raises(SettingError, match="the class 'unicorn' holds no picture"):
        load_dataset(f"folder:{folder}")
    (folder / "train").mkdir()
    with pytest.raises(SettingError, match="holds both clients and train; must hold one of them"):
        load_dataset(f"folder:{folder}")


def test_clients_may_be_the_name_of_a_class(tmp_path):
    for name in ("clients", "servers"):
        for number in range(5):
            write_picture(tmp_path / "people" / name / f"{number}.png", seed=number)
    assert Config(dataset="folder:people", data_dir=tmp_path).partition == "drawn"
    data = load_dataset("folder:people", data_dir=tmp_path, image_size=16, seed=SEED)
    assert (data.class_names, data.train_clients) == (("clients", "servers"), None)


@pytest.mark.parametrize("parts", [("train", "val"), ("cat", "dog", "test"), ("clients", "val")])
def test_a_part_of_the_samples_is_not_taken_for_a_class(tmp_path, parts):
    for part in parts:
        write_classes(tmp_path / part)
    with pytest.raises(SettingError, match=f"holds a folder '{parts[-1]}', which is no class"):
        load_dataset(f"folder:{tmp_path}")


def test_pictures_of_every_format_that_is_read_count(tmp_path):
    folder = write_classes(tmp_path / "pets", count=2)
    for number, ending in enumerate((".gif", ".tif", ".TIFF")):
        Image.new("RGB", (20, 20)).save(folder / "cat" / f"more{number}{ending}")
    shutil.copytree(folder, tmp_path / "both" / "train")
    shutil.copytree(folder, tmp_path / "both" / "test")
    data = load_dataset(f"folder:{tmp_path}/both", image_size=16)
    assert data.train_labels.tolist() == data.test_labels.tolist() == [0] * 5 + [1] * 2
