"""With which settings a GPU's process starts."""

from interlace.device.cuda.processes import BEFORE_CUDA


def test_kernels_are_loaded_when_they_are_first_launched() -> None:
    assert BEFORE_CUDA["CUDA_MODULE_LOADING"] == "LAZY"


def test_torch_takes_the_workspaces_of_cublas_for_deterministic() -> None:
    """Under other values than these it warns of each kind of operation that cuBLAS does."""
    assert BEFORE_CUDA["CUBLAS_WORKSPACE_CONFIG"] in (":4096:8", ":16:8")
