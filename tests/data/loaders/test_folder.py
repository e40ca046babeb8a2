"""Folders of pictures."""

import pytest
from PIL import Image

from rscfed_jax.config import SettingError
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
