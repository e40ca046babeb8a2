"""Presets choose between the paper and its published code; a setting given by hand overrides the preset.

`paper`: the equations of the text and, where it is silent about a number, the authors' commands. `published`: the
behaviour of the published code. Data sets and methods change some of these numbers; they say so in their own files.
"""

from typing import Any

PRESETS: dict[str, dict[str, Any]] = {
    "paper": {
        "repeat": "retrain",
        "distance": "l2",
        "labeled_share": 0.5,
        "labeled_multiplier": 1.0,
        "beta": 10_000.0,
        "beta_labeled": None,
        "teacher_init": "initial",
        "ema_warmup": False,
        "flip": False,
        "warmup_rounds": 0,
    },
    "published": {
        "repeat": "sequential",
        "distance": "sum",
        "labeled_share": "off",
        "labeled_multiplier": 6.0,
        "beta": 10_000.0,
        "beta_labeled": 100.0,
        "teacher_init": "first-selected",
        "ema_warmup": True,
        "flip": True,
        "warmup_rounds": 7,
    },
}


def with_known_preset(stored: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run; `tuned`, of earlier versions, was `paper` with a `lambda_u` that they hold."""
    was_tuned = stored.get("preset") == "tuned" and "lambda_u" in stored
    return stored | {"preset": "paper"} if was_tuned else stored


# Numbers of the authors' commands for SVHN and CIFAR-100, which serve all data that do not say otherwise.
USUAL: dict[str, Any] = {
    "model": "simple-cnn",
    "stem": "cifar",
    "image_size": 32,
    "resize": "5/4",  # of the image size
    "batch_size": 64,
    "lr_labeled": 0.03,
    "lr_unlabeled": 0.021,
    "lambda_u": 0.02,
    "ema": 0.999,
}
