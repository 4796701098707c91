"""Tables: legal ones become structs, and errors say which key, what is there and what fits."""

from dataclasses import dataclass
from typing import Annotated, Literal

import pytest
from msgspec import Meta, Struct

from interlace.core.tables import TableError, did_you_mean, parse_bytes, read_table

Positive = Annotated[float, Meta(gt=0)]


class Model(Struct, forbid_unknown_fields=True):
    rate_rps: Annotated[float, Meta(ge=0, le=1e12)]
    max_batch: Annotated[int, Meta(ge=1)] = 32
    slo_ms: Annotated[float, Meta(gt=0, description="a time in ms above 0")] | None = None


class Poisson(Struct, tag_field="kind", tag="poisson", forbid_unknown_fields=True):
    rate_rps: float = 1.0


class Steps(Struct, tag_field="kind", tag="steps", forbid_unknown_fields=True):
    steps: Annotated[list[tuple[float, Positive]], Meta(min_length=1)]


@dataclass
class Slot:
    model: str
    batch: Annotated[int, Meta(ge=1)]


class File(Struct, forbid_unknown_fields=True):
    slots: list[Slot] = []
    models: dict[str, Model] = {}
    price: Positive | dict[str, Positive] | None = None
    shares: list[Annotated[int, Meta(ge=1, le=100)]] = []
    workload: Poisson | Steps | None = None
    every: int | Annotated[list[Positive], Meta(min_length=1)] = 1
    mode: Literal["fast", "slow"] = "fast"


def test_a_legal_table_becomes_its_struct() -> None:
    found = read_table({"models": {"a": {"rate_rps": 3}}, "workload": {"kind": "poisson"}}, File)
    assert found.models["a"] == Model(3.0)
    assert found.workload == Poisson()
    assert read_table({"rate_rps": "3"}, Model, strict=False) == Model(3.0)


@pytest.mark.parametrize(
    ("table", "key", "what", "expected"),
    [
        ({"models": {"a": {"rate_rps": 1}, "b": {"rate_rps": -1}}}, "models.b.rate_rps", "-1",
         "a number from 0 to 1e+12"),
        ({"models": {"a": {"rate_rps": True}}}, "models.a.rate_rps", "true",
         "a number from 0 to 1e+12"),
        ({"models": {"a": {"rate_rps": float("nan")}}}, "models.a.rate_rps", "nan",
         "a number from 0 to 1e+12"),
        ({"models": {"a": {}}}, "models.a.rate_rps", "missing", "a number from 0 to 1e+12"),
        ({"models": {"a": {"rate_rps": 1, "max_bach": 2}}}, "models.a.max_bach", "an unknown key",
         "one of rate_rps, max_batch, slo_ms (did you mean max_batch?)"),
        ({"models": {"a": {"rate_rps": 1, "max_batch": 1.5}}}, "models.a.max_batch", "1.5",
         "a whole number of at least 1"),
        ({"models": {"a": {"rate_rps": 1, "slo_ms": 0}}}, "models.a.slo_ms", "0",
         "a time in ms above 0"),
        ({"price": "x"}, "price", "'x'",
         "a number above 0 or a table, each value a number above 0"),
        ({"price": {"t4": 0}}, "price.t4", "0", "a number above 0"),
        ({"shares": [1, 0]}, "shares[1]", "0", "a whole number from 1 to 100"),
        ({"workload": {}}, "workload.kind", "missing", "one of poisson, steps"),
        ({"workload": {"kind": "poison"}}, "workload.kind", "'poison'",
         "one of poisson, steps (did you mean poisson?)"),
        ({"workload": {"kind": "steps", "steps": [[1, 0]]}}, "workload.steps[0][1]", "0",
         "a number above 0"),
        ({"workload": {"kind": "steps", "steps": [[1]]}}, "workload.steps[0]", "[1]",
         "a list of 2: a number, a number above 0"),
        ({"workload": {"kind": "steps", "steps": []}}, "workload.steps", "[]",
         "a list that is not empty, each item a list of 2: a number, a number above 0"),
        ({"workload": 3}, "workload", "3", "a table with rate_rps or a table with steps"),
        ({"slots": [{"model": "a", "batch": 0}]}, "slots[0].batch", "0",
         "a whole number of at least 1"),
        ({"slots": [{"model": "a"}]}, "slots[0].batch", "missing", "a whole number of at least 1"),
        ({"every": [1, 0]}, "every[1]", "0", "a number above 0"),
        ({"mode": "fats"}, "mode", "'fats'", "one of fast, slow (did you mean fast?)"),
        (3, "", "3", "a table with slots, models, price, shares, workload, every, mode"),
    ],
)  # fmt: skip
def test_an_illegal_one_is_told_by_key(table: object, key: str, what: str, expected: str) -> None:
    with pytest.raises(TableError) as caught:
        read_table(table, File)
    assert (caught.value.key, caught.value.found, caught.value.expected) == (key, what, expected)


def test_keys_begin_where_the_table_lies() -> None:
    with pytest.raises(TableError, match=r"^models\.a\.rate_rps is -1; expected a number from 0"):
        read_table({"rate_rps": -1}, Model, "models.a")


def test_near_names_of_hostile_length_are_quick() -> None:
    assert did_you_mean("resnet5", ["resnet50", "vgg"]) == " (did you mean resnet50?)"
    assert did_you_mean("x" * 1_000_000, ["resnet50"]) == ""


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("1", 1), ("512MB", 512_000_000), ("1.5 GiB", 3 << 29), (" 2k ", 2000), ("1TiB", 1 << 40)],
)
def test_units_are_decimal_or_binary(text: str, nbytes: int) -> None:
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize("text", ["", "0", "-1", "2 apples", "GB", "9e9", "99999999999TB"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no number of bytes"):
        parse_bytes(text)
