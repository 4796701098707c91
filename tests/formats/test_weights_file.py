"""Files of tensors: read by safetensors, mapped by us, aligned, checked."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load

from interlace.formats.page_cache import LARGE_PAGE_BYTES, cached_part, drop_cached
from interlace.formats.runner import map_file
from interlace.formats.weights_file import (
    ALIGNMENT_BYTES,
    _in_pieces,
    is_undamaged,
    read_table,
    storable,
    view,
    write_tensors,
)

DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
)  # fmt: skip


def map_tensors(path: Path) -> dict[str, torch.Tensor]:
    with path.open("rb") as file:
        mapped = map_file(file)
    return {name: view(mapped, place) for name, place in read_table(path, mapped).places.items()}


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    tensor = torch.randint(0, 2, shape).to(draw(st.sampled_from(DTYPES)))
    order = draw(st.permutations(range(len(shape))))
    return tensor.permute(order)


@given(st.dictionaries(st.text(min_size=1, max_size=5), tensors(), max_size=6))
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_mapped_and_is_safetensors(named: dict[str, torch.Tensor]) -> None:
    import tempfile

    named = {name: value for name, value in named.items() if not name.startswith("__")}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "w.safetensors"
        write_tensors(path, named)
        mapped = map_tensors(path)
        theirs = load(path.read_bytes())
    assert mapped.keys() == named.keys()
    for name, tensor in named.items():
        assert mapped[name].dtype == tensor.dtype
        assert torch.equal(mapped[name], tensor)
        assert theirs[name].numel() == tensor.numel()
        if tensor.numel():
            assert mapped[name].data_ptr() % ALIGNMENT_BYTES == 0


@given(st.lists(st.integers(0, 3 * LARGE_PAGE_BYTES // 2), max_size=5))
@settings(max_examples=20, deadline=None)
def test_files_are_written_in_whole_large_pages(sizes: list[int]) -> None:
    parts = [bytes([number]) * size for number, size in enumerate(sizes)]
    pieces = list(_in_pieces(map(memoryview, parts)))
    assert b"".join(pieces) == b"".join(parts)
    assert {len(piece) for piece in pieces[:-1]} <= {LARGE_PAGE_BYTES}
    assert len(pieces[-1]) < LARGE_PAGE_BYTES


def test_layouts_of_memory_survive(tmp_path: Path) -> None:
    weight = torch.randn(6, 4, 3, 3).contiguous(memory_format=torch.channels_last)
    gaps = torch.randn(4, 8)[:, ::2]
    write_tensors(tmp_path / "w", {"weight": weight, "gaps": gaps})
    mapped = map_tensors(tmp_path / "w")
    assert mapped["weight"].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(mapped["weight"], weight)
    assert torch.equal(mapped["gaps"], gaps)


def test_writing_to_a_view_leaves_the_file_alone(tmp_path: Path) -> None:
    write_tensors(tmp_path / "w", {"a": torch.zeros(4)})
    map_tensors(tmp_path / "w")["a"].fill_(7.0)
    assert torch.equal(map_tensors(tmp_path / "w")["a"], torch.zeros(4))


def test_a_file_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "w").write_text("mine")
    with pytest.raises(FileExistsError):
        write_tensors(tmp_path / "w", {"a": torch.zeros(4)})


@pytest.mark.parametrize("cut", [0, 4, 40, -12])
def test_a_cut_file_is_refused(tmp_path: Path, cut: int) -> None:
    write_tensors(tmp_path / "w", {"a": torch.zeros(64)})
    content = (tmp_path / "w").read_bytes()
    (tmp_path / "cut").write_bytes(content[:cut])
    with pytest.raises(ValueError, match=r"safetensors|header|fit"):
        map_tensors(tmp_path / "cut")


def test_a_changed_byte_is_noticed_and_the_page_cache_left_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "w"
    write_tensors(path, {"a": torch.arange(6 << 20)})
    assert is_undamaged(path)
    for cached in (True, False):
        if not cached:
            drop_cached(path)
        before = cached_part(path)
        assert is_undamaged(path)
        assert cached_part(path) <= before + 0.1
    size = path.stat().st_size
    for place in (0, 9, size // 2, size - 9, size - 1):
        content = bytearray(path.read_bytes())
        content[place] ^= 1
        (tmp_path / "changed").write_bytes(content)
        assert not is_undamaged(tmp_path / "changed")


def test_offsets_outside_the_file_are_refused(tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [4], "data_offsets": [-16, 0]}}).encode()
    (tmp_path / "w").write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
    with pytest.raises(ValueError, match="does not fit"):
        map_tensors(tmp_path / "w")


def test_what_cannot_be_stored_is_known() -> None:
    assert storable(torch.zeros(2))
    assert not storable(torch.zeros(2, dtype=torch.complex64))
    assert not storable(torch.zeros(2).to_sparse())
