"""The flags of settings: every setting has one, and its help tells the default."""

from rscfed_jax.cli.flags import default_note
from rscfed_jax.config import SETTINGS
from rscfed_jax.config.registry import METHODS
from tests.helpers import run


def test_help_of_train_names_every_setting_and_those_of_all_methods(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    run("train", "--help")
    text = capsys.readouterr().out
    for setting in (*SETTINGS.values(), *(own for method in METHODS.declarations.values() for own in method.settings)):
        assert f"{setting.flag} " in text or f"{setting.flag}," in text, setting.flag
        assert default_note(setting)[:30] in " ".join(text.split())
    assert "--fedirm-factor F" in text


def test_notes_tell_defaults_that_presets_data_sets_and_methods_have_instead():
    assert default_note(SETTINGS["beta_labeled"]).startswith(" (published 100")
    assert default_note(SETTINGS["flip"]) == " (default false; published true)"
    assert default_note(SETTINGS["resize"]).startswith(" (default 5/4 of --image-size")
    assert "fedirm 0.99" in default_note(SETTINGS["ema"])
    assert default_note(SETTINGS["partition_file"]) == ""
