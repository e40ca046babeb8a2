"""Federated averaging as a lean loop in PyTorch: one client after the other, each on all threads."""

import torch
from torch_training import Network, client_tensors, train_client
from work import setting, turns


def main() -> None:
    """Runs rounds on request."""
    clients, samples, _ = setting()
    torch.manual_seed(0)
    model = Network()
    params = list(model.parameters())
    for client in range(clients):
        client_tensors(client, samples)
    share = 1 / clients  # clients of the same size
    for rounds in turns():
        for _ in range(rounds):
            sent = [p.detach().clone() for p in params]
            mean = [torch.zeros_like(p) for p in sent]
            for client in range(clients):
                with torch.no_grad():
                    torch._foreach_copy_(params, sent)
                train_client(model, client, samples)
                with torch.no_grad():
                    torch._foreach_add_(mean, params, alpha=share)
            with torch.no_grad():
                torch._foreach_copy_(params, mean)


if __name__ == "__main__":
    main()
