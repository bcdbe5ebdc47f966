"""What PCCL 1.0 has as `pccl.cuda`. This version works on the memory of the CPU."""

is_cuda_available = False


def is_available() -> bool:
    """Whether tensors on GPUs can be used."""
    return is_cuda_available
