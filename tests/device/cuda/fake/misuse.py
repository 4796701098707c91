"""What a real GPU would let pass or answer with garbage, as a loud error."""


class Misuse(AssertionError):
    """A wrong use of the driver that CUDA itself might not report."""
