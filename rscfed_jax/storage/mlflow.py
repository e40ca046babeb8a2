"""Runs in MLflow.

Where they are stored is up to MLflow's own variables (MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME and others). A round
is a step. A resumed run continues the same run there and asks it which steps it has.
"""

import os
import time

from rscfed_jax.storage.run_directory import MAY_CHANGE
from rscfed_jax.storage.run_log import PROJECT, RunLog

# MLflow itself would hold up the run for four minutes, and more where nothing answers, when its server is gone.
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3", "MLFLOW_HTTP_REQUEST_TIMEOUT": "15"}
MOST_METRICS, MOST_PARAMS = 1000, 100  # in one request
MARK = "test/accuracy"  # every record has it; the steps that have it are complete


class MlflowLog(RunLog):
    """Tells a run to MLflow. Its client, unlike its functions, leaves nothing to be done when the process ends."""

    name = package = "mlflow"

    def reach(self) -> None:
        """Asks the store for something small."""
        for variable, value in PATIENCE.items():
            os.environ.setdefault(variable, value)
        import mlflow

        mlflow.MlflowClient().search_experiments(max_results=1)

    def open(self) -> int:
        """A new run, or the one of the process before."""
        import mlflow
        from mlflow.entities import Param

        self._client = mlflow.MlflowClient()
        noted = self.remembered()
        self._run = noted["id"] if noted else self._new_run()
        settings = {name: str(value) for name, value in self.settings().items()}
        # A parameter cannot change, a tag can.
        for name in MAY_CHANGE:
            self._client.set_tag(self._run, name, settings[name])
        params = [Param(name, value) for name, value in settings.items() if name not in MAY_CHANGE]
        for start in range(0, len(params), MOST_PARAMS):
            self._client.log_batch(self._run, params=params[start : start + MOST_PARAMS])
        self._client.update_run(self._run, status="RUNNING")
        return max((told.step for told in self._client.get_metric_history(self._run, MARK)), default=-1) + 1

    def _new_run(self) -> str:
        import mlflow

        experiment = os.environ.get("MLFLOW_EXPERIMENT_ID")
        if experiment is None:
            experiment = mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)).experiment_id
        run = self._client.create_run(experiment, run_name=self.directory.path.absolute().name).info.run_id
        self.remember({"id": run})
        return run

    def write(self, round_: int, values: dict[str, float]) -> None:
        """One step; the request with the mark comes last."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, round_) for name, value in values.items() if name != MARK]
        metrics += [Metric(MARK, values[MARK], now, round_)]
        for start in range(0, len(metrics), MOST_METRICS):
            self._client.log_batch(self._run, metrics=metrics[start : start + MOST_METRICS])

    def close(self, *, finished: bool) -> None:
        """Says how the run ended."""
        self._client.set_terminated(self._run, "FINISHED" if finished else "FAILED")
