"""Twenty labeled and twenty unlabeled steps of the paper's model in PyTorch, float64: what parity is measured against.

    python -m tests.golden.make_torch_golden      # needs the extra `torch`; writes torch_parity.npz beside this file

Weights and batches come from formulas, so that the golden file holds only results: of each tensor every 7th value, the
sum and the sum of squares.
"""

from pathlib import Path

import numpy as np

FILE = Path(__file__).parent / "torch_parity.npz"
STEPS, BATCH, SIZE, CLASSES, BATCHES = 20, 6, 16, 4, 5
SETTINGS = {
    "momentum": 0.9,
    "weight_decay": 5e-4,
    "tau": 0.5,
    "ema": 0.9,  # reached by the warm-up after ten steps
    "lambda_u": 1.0,
    "lr_labeled": 0.02,
    "lr_unlabeled": 0.02,
}
CLIP_NORM = {True: 1.1, False: 0.25}  # of labeled and unlabeled steps: clips some of them, not all
# PyTorch's names and shapes.
SHAPES = {
    "conv1.weight": (6, 3, 5, 5),
    "conv1.bias": (6,),
    "conv2.weight": (16, 6, 5, 5),
    "conv2.bias": (16,),
    "fc1.weight": (120, 16),
    "fc1.bias": (120,),
    "fc2.weight": (84, 120),
    "fc2.bias": (84,),
    "l1.weight": (84, 84),
    "l1.bias": (84,),
    "l2.weight": (256, 84),
    "l2.bias": (256,),
    "l3.weight": (CLASSES, 256),
    "l3.bias": (CLASSES,),
}


def initial_weights(phase: float) -> dict[str, np.ndarray]:
    """Weights of a plausible size, from a formula."""
    weights = {}
    for number, (name, shape) in enumerate(SHAPES.items()):
        fan_in = np.prod(shape[1:]) if len(shape) > 1 else shape[0]
        wave = np.sin(np.arange(np.prod(shape)) ** 1.5 * (0.7 + 0.1 * number) + phase + number)
        weights[name] = (1.2 * wave / np.sqrt(fan_in)).reshape(shape)
    return weights


def batch(step: int, view: int) -> np.ndarray:
    """[B, 3, H, W] images from a formula; five different batches in turn."""
    count = BATCH * 3 * SIZE * SIZE
    wave = np.sin(np.arange(count) ** 1.5 * 0.37 + 11.0 * (step % BATCHES) + 0.2 * view)
    return wave.reshape(BATCH, 3, SIZE, SIZE)


def labels(step: int) -> np.ndarray:
    """[B] labels."""
    return (np.arange(BATCH) * 3 + step % BATCHES) % CLASSES


def summarise(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every 7th value, the sum and the sum of squares of each tensor."""
    return {
        name: np.concatenate([[value.sum(), (value**2).sum()], value.ravel()[::7]]) for name, value in weights.items()
    }


def run_torch(*, labeled: bool) -> dict[str, dict[str, np.ndarray]]:
    """Student and teacher after the steps, as PyTorch has them."""
    import torch
    import torch.nn.functional as F

    def forward(weights, x):
        for layer in ("conv1", "conv2"):
            x = F.max_pool2d(F.relu(F.conv2d(x, weights[f"{layer}.weight"], weights[f"{layer}.bias"])), 2)
        x = x.flatten(1)
        for layer in ("fc1", "fc2", "l1"):
            x = F.relu(F.linear(x, weights[f"{layer}.weight"], weights[f"{layer}.bias"]))
        x = F.linear(x, weights["l2.weight"], weights["l2.bias"])
        return F.linear(x, weights["l3.weight"], weights["l3.bias"])

    student = {name: torch.tensor(value, requires_grad=True) for name, value in initial_weights(0.0).items()}
    teacher = {name: torch.tensor(value) for name, value in initial_weights(0.5).items()}
    optimizer = torch.optim.SGD(
        list(student.values()),
        lr=SETTINGS["lr_labeled" if labeled else "lr_unlabeled"],
        momentum=SETTINGS["momentum"],
        weight_decay=SETTINGS["weight_decay"],
    )
    clipped = 0
    for step in range(STEPS):
        logits = forward(student, torch.tensor(batch(step, 0)))
        if labeled:
            loss = F.cross_entropy(logits, torch.tensor(labels(step)))
        else:
            with torch.no_grad():
                target = torch.softmax(forward(teacher, torch.tensor(batch(step, 1))), 1) ** (1 / SETTINGS["tau"])
                target = target / target.sum(1, keepdim=True)
            loss = SETTINGS["lambda_u"] * ((target - torch.softmax(logits, 1)) ** 2).sum() / BATCH
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(list(student.values()), CLIP_NORM[labeled])
        clipped += bool(norm > CLIP_NORM[labeled])
        optimizer.step()
        keep = min(1 - 1 / (step + 1), SETTINGS["ema"])
        with torch.no_grad():
            for name, value in teacher.items():
                value.mul_(keep).add_(student[name], alpha=1 - keep)
    assert 0 < clipped < STEPS, f"clipping must matter in some steps, not all: {clipped}"
    out = {"student": student, "teacher": teacher}
    return {who: {name: value.detach().numpy() for name, value in model.items()} for who, model in out.items()}


def main() -> None:
    """Writes the golden file."""
    arrays = {}
    for labeled in (True, False):
        for who, weights in run_torch(labeled=labeled).items():
            for name, value in summarise(weights).items():
                arrays[f"{'labeled' if labeled else 'unlabeled'}/{who}/{name}"] = value
    np.savez_compressed(FILE, **arrays)
    print(f"{FILE}: {FILE.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
