"""The contract of devices as gpu-check asks it of a GPU, on the fake driver."""

import time
from functools import partial
from pathlib import Path

import pytest

from bench.gpu.bench import Bench
from bench.gpu.devices import KINDS, board
from bench.gpu.rows import Row, Verdict
from interlace.core.messages import Load
from tests.bench import gpu_contract as contracts
from tests.bench import gpu_stand as contractstand
from tests.bench.gpu_stand import GpuStand, few
from tests.contracts.stands import SLOW, CpuStand

UNITS, DEATH = contracts._DRY_TESTS


def bench(out: Path) -> Bench:
    return Bench(True, out, time.monotonic() + 60.0, contracts._none)


def held(out: Path, kind: str, name: str) -> Row:
    make = partial(contracts._stand, bench(out), kind, {})
    (row,) = contracts.held(name, make, contracts.tests()[name])
    return row


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [UNITS, DEATH])
def test_what_asks_the_stand_of_its_mechanism_holds(tmp_path: Path, kind: str, name: str) -> None:
    row = held(tmp_path, kind, name)
    assert row.verdict is Verdict.AS_EXPECTED, row


def test_a_stand_has_few_shares_and_a_slow_model_one_batch_size(tmp_path: Path) -> None:
    assert few(tuple(range(5, 101, 5))) == (5, 55, 100)
    assert few((12, 100)) == (12, 100)
    assert few((100,)) == (100,)
    seen: list[object] = []

    def test(stand: GpuStand) -> None:
        shares = stand.device.gpu.shares_pct
        seen.append((len(shares), [stand.units(share) for share in shares]))

    (row,) = contracts.held("shares", partial(contracts._stand, bench(tmp_path), "green", {}), test)
    assert row.verdict is Verdict.AS_EXPECTED
    assert seen == [(3, [8, 72, 132])]
    slow = contracts._in_one_row(SLOW)
    assert slow.key == SLOW.key and slow.signature.max_batch == 1
    assert Load("g", "p", slow.key).model == SLOW.key


def test_a_client_of_mps_is_asked_how_many_sms_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def client_sms(environment: object, share_pct: int) -> int:
        asked.append(share_pct)
        return 68

    monkeypatch.setattr(contractstand, "client_sms", client_sms)
    stand = GpuStand("mps", board(bench(tmp_path)), {})
    try:
        assert stand.units(55) == 68
        assert asked == [55]
        assert not stand.die_together()
    finally:
        stand.close()


def test_processes_keep_files_where_the_part_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/out/home")
    monkeypatch.delenv("TMPDIR", raising=False)
    assert contractstand.here()["HOME"] == "/out/home"
    assert "TMPDIR" not in contractstand.here()


def test_the_contract_runs_without_a_test_runner() -> None:
    found = contracts.tests()
    assert len(found) > 15
    test = found["test_several_models_share_a_partition_and_leave_it"]
    (row,) = contracts.held("what", CpuStand, test)
    assert row.verdict is Verdict.AS_EXPECTED

    def broken(stand: object) -> None:
        raise AssertionError("not so")

    (row,) = contracts.held("what", CpuStand, broken)
    assert row.verdict is Verdict.OTHER
    assert "not so" in row.found
    assert row.dry().verdict is Verdict.FAILED
