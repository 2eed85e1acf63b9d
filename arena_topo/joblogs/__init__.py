"""The logs of a job: which pods, since when, in which order, and what is kept of them."""
