"""Submit MPI training jobs with arena's commands, each worker placed on the best-linked GPUs."""

__version__ = "0.1.0"
