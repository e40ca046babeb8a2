"""Runs in Weights & Biases.

Where and how they are stored is up to the package's own variables (WANDB_MODE, WANDB_PROJECT, WANDB_ENTITY and others).
A round is a step. A resumed run continues the same run there, and no step is sent twice: the server knows which steps
it has; offline, where each process leaves a part that `wandb sync` appends, wandb.json in the run directory says so.
"""

import os
import secrets
from typing import Any

from rscfed_jax.storage.run_log import PROJECT, RunLog

WITHOUT_SERVER = ("offline", "disabled", "dryrun")  # values of WANDB_MODE


class WandbLog(RunLog):
    """Tells a run to Weights & Biases."""

    name = package = "wandb"

    def reach(self) -> None:
        """Asks for the key, on a terminal, if there is none."""
        import wandb

        if os.environ.get("WANDB_MODE") not in WITHOUT_SERVER:
            try:
                wandb.login()
            except wandb.Error as error:
                raise RuntimeError(f"{error} Or set WANDB_MODE=offline and use `wandb sync` later.") from None

    def open(self) -> int:
        """A new run, or the one of the process before."""
        import wandb

        self._noted = self.remembered() or {"id": secrets.token_hex(4), "round": -1}
        self.remember(self._noted)
        place = self.directory.path
        usual = {"project": PROJECT, "name": place.absolute().name, "dir": str(place)}
        own: dict[str, Any] = {name: usual[name] for name in usual if f"WANDB_{name.upper()}" not in os.environ}
        self._run = wandb.init(
            id=self._noted["id"],
            resume="allow",
            config=self.settings(),
            allow_val_change=True,  # --rounds may grow
            settings=wandb.Settings(console="off"),  # the progress bar would be its log
            **own,
        )
        return self._noted["round"] + 1 if self._run.offline else self._run.step

    def write(self, round_: int, values: dict[str, float]) -> None:
        """One step."""
        before, self._noted = self._noted, self._noted | {"round": round_}
        # First: a process that is killed in between leaves a round out rather than telling it twice.
        self.remember(self._noted)
        try:
            self._run.log(values, step=round_, commit=True)
        except Exception:
            self.remember(before)
            raise

    def close(self, *, finished: bool) -> None:
        """Waits until everything is sent."""
        self._run.finish(exit_code=0 if finished else 1)
