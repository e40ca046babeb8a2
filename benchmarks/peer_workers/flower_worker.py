"""Federated averaging in Flower's Ray simulation: a supernode for each client, a CPU for each that trains.

The server's function waits for its turn between two calls of the strategy; Ray and its actors stay alive.
"""

import functools
import os
from collections.abc import Iterable

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch_training import Network, train_client
from work import setting, turns


class Strict(FedAvg):
    """FedAvg that stops at the first failed client, which Flower would leave out."""

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The mean of the models by number of samples."""
        replies = list(replies)
        for reply in replies:
            if reply.has_error():
                raise RuntimeError(reply.error.reason)
        if len(replies) < self.min_train_nodes:
            raise RuntimeError(f"{len(replies)} of {self.min_train_nodes} clients answered")
        return super().aggregate_train(server_round, replies)


def train(message: Message, context: Context) -> Message:
    """A client's epoch."""
    samples = message.content["config"]["samples"]
    model = Network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    train_client(model, context.node_config["partition-id"], samples)
    answer = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": samples})}
    return Message(content=RecordDict(answer), reply_to=message)


def serve(grid: Grid, context: Context, *, clients: int, samples: int) -> None:
    """Runs rounds on request."""
    del context
    everyone = {"min_train_nodes": clients, "min_available_nodes": clients}
    strategy = Strict(fraction_train=1.0, fraction_evaluate=0.0, **everyone)
    torch.manual_seed(0)
    arrays = ArrayRecord(Network().state_dict())
    for rounds in turns():
        config = ConfigRecord({"samples": samples})
        arrays = strategy.start(grid, arrays, num_rounds=rounds, train_config=config).arrays


def main() -> None:
    """Starts the simulation, which ends when no more rounds are asked for."""
    clients, samples, _ = setting()
    server, client = ServerApp(), ClientApp()
    server.main()(functools.partial(serve, clients=clients, samples=samples))
    client.train()(train)
    backend = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    backend["init_args"] = {"num_cpus": len(os.sched_getaffinity(0))}
    run_simulation(server, client, num_supernodes=clients, backend_config=backend)


if __name__ == "__main__":
    main()
