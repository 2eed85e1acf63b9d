"""What NCCL reaches on a set of GPUs and NICs."""
