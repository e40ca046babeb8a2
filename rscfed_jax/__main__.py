"""`python -m rscfed_jax` is the same as `rscfed-jax`."""

import sys

from rscfed_jax.cli import main

sys.exit(main())
