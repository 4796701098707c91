"""interlace.toml and parameters: values, units, precedence, mistakes with their line."""

from pathlib import Path

import pytest

from interlace.core.errors import RepositoryError
from interlace.core.model import Precision
from interlace.repository.model_config import ModelConfig
from interlace.repository.model_settings import (
    MemoryTable,
    ModelSettings,
    parse_settings,
    read_settings,
)

WHOLE = """
slo_ms = 20
max_batch = 16
priority = 1
memory_limit = "1.5 GiB"
rate_rps = 12.5
queue_limit = 100
precision = "bf16"
compile = true

[memory]
resident = true
keep_s = 2.5
max_mb = 40

[sample]
x = [3, 224, 224]
"input.1" = 7
"""


def test_a_whole_file() -> None:
    read = parse_settings(WHOLE, "t")
    assert (read.slo_ms, read.max_batch, read.priority) == (20.0, 16, 1)
    assert (read.memory_limit_bytes, read.rate_rps, read.queue_limit) == (3 << 29, 12.5, 100)
    assert type(read.memory_limit_bytes) is int  # frames to workers encode no subclass
    assert {type(sizes) for sizes in read.sample.values()} <= {tuple}
    assert read.sample == {"x": (3, 224, 224), "input.1": (7,)}
    assert read.where("queue_limit") == "t:7: queue_limit"
    assert (read.precision, read.compiled) == (Precision.BF16, True)
    assert read.memory == MemoryTable(resident=True, keep_s=2.5, max_mb=40.0)
    assert read.where("sample.x") == "t:17: sample.x"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("512", 512), ('"512"', 512), ('"2kB"', 2000), ('"512MB"', 512_000_000), ('"4 Ki"', 4096)],
)
def test_sizes_have_units(text: str, wanted: int) -> None:
    assert parse_settings(f"memory_limit = {text}", "t").memory_limit_bytes == wanted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "\nslo = 5",
            r"t:2: slo: found an unknown key; expected one of slo_ms, .*did you mean slo_ms\?",
        ),
        ("slo_ms = 0", "t:1: slo_ms: found 0; expected a time in ms above 0"),
        ("slo_ms = true", "slo_ms: found true"),
        ("slo_ms = inf", "slo_ms: found inf"),
        ('slo_ms = "fast"', "slo_ms: found 'fast'"),
        ("max_batch = 1.5", "max_batch: found 1.5; expected a whole number of rows"),
        ("max_batch = -1", "max_batch: found -1"),
        ('memory_limit = "12 parsecs"', "memory_limit: found '12 parsecs'; expected a size"),
        ("queue_limit = 0", "queue_limit: found 0"),
        ('precision = "int8"', 't:1: precision: found \'int8\'; expected "fp32", "fp16", '),
        ("precision = true", "precision: found true"),
        ("compile = 1", "compile: found 1; expected true or false"),
        ("[memory]\nmax_mb = 0", "t:2: memory.max_mb: found 0; expected a number of MB above 0"),
        ("[memory]\nkeep_s = -1", "t:2: memory.keep_s: found -1; expected a time in seconds"),
        ("[memory]\nresident = 1", "memory.resident: found 1; expected true or false"),
        ("[memory]\npin = true", "memory.pin: found an unknown key; expected one of "),
        ("sample = 3", r"sample: found 3; expected a table: \[sample\]"),
        ("[sample]\nx = []", r"t:2: sample.x: found \[\]; expected a list of sizes"),
        ("[sample]\nx = [0]", r"sample.x: found \[0\]"),
        ("[sample]\nx = true", "sample.x: found true"),
        ('[sample]\nx = "hi"', r"t:2: sample.x: found 'hi'; expected .* { value = \[\"text\"\] }"),
        ("slo_ms = ", r"t: found no TOML \(Invalid value \(at end of document\)\)"),
    ],
)
def test_mistakes_are_named_with_their_line(text: str, message: str) -> None:
    with pytest.raises(RepositoryError, match=message):
        parse_settings(text, "t")


def parameters(**texts: str) -> ModelConfig:
    values = {key.replace("__", "."): {"string_value": text} for key, text in texts.items()}
    return ModelConfig("config.pbtxt", {"parameters": values})


def test_parameters_speak_where_the_file_is_silent(tmp_path: Path) -> None:
    said = {"precision": "auto", "compile": "true", "threads": "2"}
    config = parameters(slo_ms="30", max_batch="4", sample__x="3, 8", **said)
    alone = read_settings(tmp_path, config)
    assert (alone.precision, alone.compiled) == (Precision.AUTO, True)
    assert (alone.slo_ms, alone.max_batch, alone.sample) == (30.0, 4, {"x": (3, 8)})
    (tmp_path / "interlace.toml").write_text("slo_ms = 10\n")
    both = read_settings(tmp_path, config)
    assert (both.slo_ms, both.max_batch, both.sample) == (10.0, 4, {"x": (3, 8)})


def test_wrong_parameters_are_named() -> None:
    with pytest.raises(RepositoryError, match=r"config.pbtxt: parameters\['slo_ms'\]: found 'x'"):
        read_settings(Path("nowhere"), parameters(slo_ms="x"))


def test_nothing_said_is_nothing_asked(tmp_path: Path) -> None:
    assert read_settings(tmp_path, ModelConfig("c")) == ModelSettings(source="c")
