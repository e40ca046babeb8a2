"""The race that chooses the form of convolutions on an accelerator, run for real on the device that is here.

    python benchmarks/forms.py [--clients 1 4 15]      # a minute on two CPU cores

A run on a GPU or TPU times both forms before its first round, on a local step of up to 16 clients at once, and keeps
the faster one. On CPU it does not ask: this benchmark does, and shows that products of matrices, which a CPU gets
untimed, win there.
"""

import argparse
import time

import jax
from common import publish

import rscfed_jax as rj
from rscfed_jax.runner.build import NO_OBJECTS
from rscfed_jax.runner.race import race


def main() -> None:
    """Runs the race for some numbers of clients and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 15], help="clients at once (default 1 4 15)")
    arguments = parser.parse_args()
    config = rj.Config(devices=1)
    federation = rj.build_federation(config)
    found = {}
    for clients in arguments.clients:
        began = time.perf_counter()
        seconds = race(config, federation, clients=clients, objects=NO_OBJECTS).seconds
        took = time.perf_counter() - began
        ratio = seconds["plain"] / seconds["matmul"]
        print(f"{clients:3d} clients at once: ", *(f"{form} {1000 * each:.1f} ms" for form, each in seconds.items()))
        found[str(clients)] = {"seconds_per_step": seconds, "plain_over_matmul": ratio, "race_seconds": took}
    publish("forms", {"device": jax.devices()[0].device_kind, "clients": found})


if __name__ == "__main__":
    main()
