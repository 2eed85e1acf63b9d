"""What bandwidth NCCL reaches on GPUs of a machine and between machines."""
