"""Networks of the clients, by name."""

from rscfed_jax.models.resnet import ResNet18
from rscfed_jax.models.simple_cnn import SimpleCNN

MODELS = {"simple-cnn": SimpleCNN, "resnet18": ResNet18}
