"""The numbers that a compiled program takes as arguments: changing them never recompiles."""

from typing import Any, NamedTuple

from rscfed_jax.config.config import Config


class Hyper(NamedTuple):
    """Numbers that training takes as arguments; a grid over them is one more batch axis of the same program."""

    lr_labeled: Any
    lr_unlabeled: Any
    cosine_rounds: Any  # 0: constant learning rates
    momentum: Any
    weight_decay: Any
    clip_norm: Any
    prox_mu: Any
    tau: Any
    ema: Any
    ema_warmup: Any  # 1: the teacher follows faster in a client's first steps
    teacher_from_selection: Any  # 1: a teacher starts from the global model of the client's first round
    lambda_u: Any
    flip_rate: Any
    beta: Any
    beta_labeled: Any
    labeled_share: Any  # negative: by data amount alone
    labeled_multiplier: Any
    assumed_attackers: Any  # that robust aggregators are to withstand
    server_lr: Any
    server_momentum: Any
    warmup_rounds: Any
    drop_rate: Any
    byzantine: Any  # number of attackers
    attack_scale: Any  # deviation of the noise, or factor of the step
    own: dict[str, Any]  # the method's own numbers by name; a switch is 1 or 0

    @classmethod
    def of(cls, config: Config) -> "Hyper":
        """Takes the numbers out of a config, as Python floats."""
        values = config.to_dict()
        values["teacher_from_selection"] = config.teacher_init == "first-selected"
        values["flip_rate"] = 0.5 if config.flip else 0.0
        values["labeled_share"] = -1.0 if config.labeled_share == "off" else config.labeled_share
        shared = {name: float(values[name]) for name in cls._fields if name != "own"}
        return cls(**shared, own={name: float(value) for name, value in config.numbers.items()})
