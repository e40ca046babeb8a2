"""Every setting of an experiment that all methods share: name, default, what it accepts, and what it is for."""

import dataclasses
from typing import Any

from rscfed_jax.config.kinds import PATH, SWITCH, TEXT, Kind, Setting, number, one_of, or_word, whole
from rscfed_jax.config.presets import PRESETS

SAMPLES = ("subsets", "all", "labeled", "unlabeled")
AGGREGATORS = ("mean", "dma", "median", "trimmed_mean", "krum", "multi_krum", "geometric_median")


def _setting(default: Any, kind: Kind, help_text: str, group: str) -> Any:
    return dataclasses.field(default=default, metadata={"kind": kind, "help": help_text, "group": group})


@dataclasses.dataclass(frozen=True, init=False)
class Settings:
    """The fields of a config. A default of None is resolved from method, data set and preset, or left open."""

    dataset: str = _setting("fashion", TEXT, "data set", "data")
    data_dir: str | None = _setting(
        None, PATH, "folder that holds the data set (default: data; for npz: and folder: the current folder)", "data"
    )
    download: bool = _setting(
        False, SWITCH, "fetch the files of svhn, cifar10 or cifar100 into --data-dir if they are missing", "data"
    )
    download_from: str = _setting(
        "official",
        one_of("official", "tfds"),
        "source of --download: the authors' server, or TFDS, which needs TensorFlow to prepare the data set",
        "data",
    )
    split: str = _setting(
        "lesion", one_of("lesion", "image"), "isic2018: split by lesion, or by image as in the paper", "data"
    )
    image_size: int = _setting(None, whole(4), "side of the model's input, in pixels", "data")
    resize: int = _setting(
        None,
        whole(4),
        "side to which training images are resized before the random crop, in pixels",
        "data",
    )
    train_fraction: float = _setting(
        1.0, number(above=0, high=1), "keep this seeded fraction of every client's samples, for quick runs", "data"
    )
    validation: float = _setting(
        0.0,
        number(0, 0.9),
        "evaluate on this fraction of the training samples, which no client then holds, instead of on the test set; "
        "use it to choose settings",
        "data",
    )

    clients: int = _setting(10, whole(1), "number of clients N", "federation")
    labels_at: str = _setting(
        "clients",
        one_of("clients", "server"),
        "who holds the labels: clients, or the server, which then has its own data and trains on it",
        "federation",
    )
    server_labels: int | None = _setting(
        None,
        or_word(whole(1), None),
        "with --labels-at server: number of labeled samples of each class at the server (default 25)",
        "federation",
    )
    labeled_clients: int | None = _setting(
        None, or_word(whole(0), None), "number of clients that hold labels (default 1)", "federation"
    )
    labeled_choice: str = _setting(
        None,
        or_word(one_of("most-classes", "first", "random"), None),
        "which clients hold labels (default most-classes; with a partition file: first)",
        "federation",
    )
    labeled_fraction: float | None = _setting(
        None,
        or_word(number(0, 1), None),
        "give every client this fraction of its labels, instead of --labeled-clients",
        "federation",
    )
    labeled_gamma: float | str | None = _setting(
        None,
        or_word(or_word(number(above=0), "iid"), None),
        "with --labeled-fraction: pool the labeled samples and divide them by a Dirichlet distribution with this "
        "concentration; --gamma then applies to the unlabeled samples only",
        "federation",
    )
    partition: str = _setting(
        None,
        or_word(one_of("drawn", "natural"), None),
        "who holds which samples: drawn according to the flags below, or as the data set says "
        "(default: natural for npz: and folder: data that name their clients)",
        "federation",
    )
    gamma: float | str | None = _setting(
        None,
        or_word(or_word(number(above=0), "iid"), None),
        "Dirichlet concentration; the smaller, the more clients differ (default 0.8)",
        "federation",
    )
    classes_per_client: int | None = _setting(
        None, or_word(whole(1), None), "give every client samples of only N classes, instead of --gamma", "federation"
    )
    min_client_size: int = _setting(
        10, whole(1), "redraw the partition until every client has at least N samples", "federation"
    )
    partition_file: str | None = _setting(
        None,
        PATH,
        "npz file with index arrays client_0, client_1, ..., or a published .pth file, instead of a drawn partition",
        "federation",
    )

    model: str = _setting(None, TEXT, "network of every client", "model")
    stem: str = _setting(
        None,
        one_of("cifar", "imagenet"),
        "first layers of resnet18 and resnet18-linear: 3x3 as published, or 7x7 with stride 2 and a max-pool",
        "model",
    )
    conv: str = _setting(
        "auto",
        one_of("auto", "matmul", "plain"),
        "form of the convolution; auto: matmul on CPU, the faster one elsewhere",
        "model",
    )
    init_from: str | None = _setting(None, PATH, "run directory or model file to start from", "model")

    method: str = _setting("rscfed", TEXT, "federated method", "method")
    sampling: str = _setting(
        "own",
        one_of("own", *SAMPLES),
        "who takes part in a round: the method's choice, --subsets of --subset-size clients, all clients, or clients "
        "with labeled or with unlabeled samples",
        "method",
    )
    aggregator: str = _setting(
        "own",
        one_of("own", *AGGREGATORS),
        "how the models of a subset are combined: the method's rule, mean by data amount, RSCFed's distances (dma), "
        "or a robust rule",
        "method",
    )
    assumed_attackers: int = _setting(
        1,
        whole(0),
        "number of corrupted models in a subset that trimmed_mean, krum and multi_krum should withstand",
        "method",
    )
    preset: str = _setting(
        "paper",
        one_of(*PRESETS),
        "the paper's equations, or the choices of the published code",
        "method",
    )
    subsets: int = _setting(3, whole(1), "number of subsets per round, M", "method")
    subset_size: int = _setting(
        None, whole(1), "clients per subset, K (default 5, or all clients if there are fewer)", "method"
    )
    repeat: str = _setting(
        None,
        one_of("retrain", "sequential", "share"),
        "a client in several subsets trains for each from the same state, for each in sequence, or once for all",
        "method",
    )
    beta: float = _setting(None, number(0), "how fast a client's weight falls with its distance", "method")
    beta_labeled: float = _setting(
        None, number(0), "beta of a subset with a labeled client (paper: the same as --beta)", "method"
    )
    distance: str = _setting(
        None, one_of("l2", "sum"), "one norm over all parameters, or the sum of the norms of all tensors", "method"
    )
    labeled_share: float | str = _setting(
        None, or_word(number(0, 1), "off"), "total weight of the labeled clients of a subset", "method"
    )
    labeled_multiplier: float = _setting(
        None,
        number(above=0),
        "factor on the data amounts of labeled clients, applied before and again after the distance",
        "method",
    )
    warmup_rounds: int = _setting(None, whole(0), "rounds with only the labeled clients, before round 1", "method")

    server_optimizer: str = _setting(
        "none",
        one_of("none", "momentum", "adam"),
        "how the server uses the mean of the models: it adopts it, or steps toward it with momentum or Adam",
        "server",
    )
    server_lr: float = _setting(
        None, number(above=0), "learning rate of --server-optimizer (default 1 for momentum, 0.01 for adam)", "server"
    )
    server_momentum: float = _setting(0.9, number(0, 1), "momentum of --server-optimizer, Adam's beta 1", "server")

    local_epochs: int = _setting(1, whole(1), "epochs that a client trains in a round", "local training")
    batch_size: int = _setting(None, whole(1), "samples in a local step", "local training")
    labeled_batch_size: int | None = _setting(
        None,
        or_word(whole(1), None),
        "with --labeled-fraction: N labeled samples in a step, beside --batch-size unlabeled ones "
        "(default: one mixed batch)",
        "local training",
    )
    lr_labeled: float = _setting(None, number(0), "learning rate of labeled clients", "local training")
    lr_unlabeled: float = _setting(None, number(0), "learning rate of unlabeled clients", "local training")
    cosine_rounds: int = _setting(
        0,
        whole(0),
        "decrease learning rates to zero along a cosine in N rounds; 0: keep them constant",
        "local training",
    )
    momentum: float = _setting(0.9, number(0, 1), "momentum of SGD, kept per client", "local training")
    weight_decay: float = _setting(5e-4, number(0), "L2 weight decay, added to the gradient", "local training")
    clip_norm: float = _setting(5.0, number(above=0), "clip gradients to this global norm", "local training")
    prox_mu: float = _setting(
        0.0, number(0), "factor of FedProx's term, half the squared distance from the global model", "local training"
    )
    balanced_softmax: bool = _setting(
        False,
        SWITCH,
        "correct the labeled loss for the client's class shares: their logarithm is added to the logits",
        "local training",
    )
    tau: float = _setting(0.5, number(above=0), "temperature of sharpening", "local training")
    ema: float = _setting(
        None,
        number(0, 1),
        "decay of the teacher's moving average in a step",
        "local training",
    )
    ema_warmup: bool = _setting(
        None,
        SWITCH,
        "let a teacher follow faster in a client's first steps, with min(1 - 1/(step + 1), ema)",
        "local training",
    )
    teacher_init: str = _setting(
        None,
        one_of("initial", "first-selected"),
        "a teacher starts from the global model of round 0, or of the client's first round",
        "local training",
    )
    lambda_u: float = _setting(None, number(0), "factor of the consistency loss", "local training")
    strong: str = _setting(
        "randaugment",
        one_of("randaugment", "torchssl", "weak"),
        "strong view, for methods that have one: RandAugment as in FixMatch or as in TorchSSL, or a second weak view",
        "local training",
    )
    flip: bool = _setting(None, SWITCH, "also flip images left to right, with probability 1/2", "local training")

    client_state: str = _setting(
        "kept",
        one_of("kept", "fresh"),
        "clients keep teacher and momentum between selections, or start from the global model each time, so that "
        "memory does not grow with the number of clients",
        "local training",
    )

    drop_rate: float = _setting(0.0, number(0, 1), "probability that a sampled client does not answer", "faults")
    byzantine: int = _setting(0, whole(0), "number of clients that send a corrupted model", "faults")
    attackers: str = _setting(
        "unlabeled-first",
        one_of("unlabeled-first", "labeled-first", "largest-first"),
        "which clients attack: those without labels, with labels or with the most samples first; ties go to the last",
        "faults",
    )
    attack: str = _setting(
        "sign-flip",
        one_of("noise", "sign-flip", "scale"),
        "what attackers send: the global model plus noise, their step backwards, or a multiple of their step",
        "faults",
    )
    attack_scale: float = _setting(
        None,
        number(above=0),
        "strength of --attack: deviation of the noise, or factor of the step (default 1; for scale: 10)",
        "faults",
    )

    rounds: int = _setting(100, whole(1), "rounds to run (the paper: 1000)", "run")
    eval_every: int = _setting(1, whole(1), "evaluate every N rounds", "run")
    checkpoint_every: int = _setting(10, whole(1), "save the state every N rounds, and at the end", "run")
    seed: int = _setting(0, whole(0), "seed of partition, initial model, sampling and augmentation", "run")
    chunk: int | str = _setting(
        "auto", or_word(whole(1), "auto"), "clients trained at once on a device, by vmap", "run"
    )
    devices: int | str = _setting("auto", or_word(whole(1), "auto"), "devices that share the clients of a round", "run")
    population: str = _setting(
        "auto",
        one_of("auto", "device", "host", "disk"),
        "where clients are kept while they do not train: on the devices, in the host's memory, or on disk, with their "
        "states in a file of the run directory (auto: the first with enough room)",
        "run",
    )
    dtype: str = _setting("float32", one_of("float32", "bfloat16"), "number format of the model's computation", "run")
    precision: str = _setting(
        "default",
        one_of("default", "highest"),
        "precision of products in training: the device's own (TF32 on newer GPUs, bfloat16 on TPUs) or full float32",
        "run",
    )
    gpu_graphs: bool = _setting(
        False,
        SWITCH,
        "keep the loops of a round in one CUDA graph, so that the host does not wait in every step (GPUs only; not yet "
        "tried on a device)",
        "run",
    )


SETTINGS: dict[str, Setting] = {
    field.name: Setting(field.name, field.default, **field.metadata) for field in dataclasses.fields(Settings)
}
