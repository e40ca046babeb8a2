# For machines with an NVIDIA GPU, whose driver and container toolkit are all that the host needs:
#   docker build --tag rscfed-jax .
#   docker run --rm --gpus all --volume "$PWD/runs:/app/runs" rscfed-jax train --rounds 40 --out runs/first
FROM python:3.11-slim
COPY pyproject.toml README.md LICENSE /src/
COPY rscfed_jax /src/rscfed_jax
RUN pip install --no-cache-dir '/src[cuda12]'
WORKDIR /app
ENTRYPOINT ["rscfed-jax"]
CMD ["--help"]
