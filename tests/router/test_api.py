"""What several nodes say, as one."""

from interlace.router.api import merged_index, merged_statistics


def test_a_version_is_ready_if_one_node_has_it_ready() -> None:
    absent = {"name": "m", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"}
    ready = {"name": "m", "version": "1", "state": "READY"}
    other = {"name": "k", "version": "2", "state": "LOADING"}
    assert merged_index([[absent], [ready, other], [absent]]) == [other, ready]


def test_statistics_add_up() -> None:
    def entry(count: int, last: int, *batches: tuple[int, int]) -> dict[str, object]:
        return {
            "name": "m",
            "version": "1",
            "last_inference": last,
            "inference_count": count,
            "inference_stats": {"success": {"count": count, "ns": 10 * count}},
            "batch_stats": [
                {"batch_size": size, "compute_infer": {"count": n, "ns": n}} for size, n in batches
            ],
            "memory_usage": [{"type": "CPU", "id": 0, "byte_size": 5}],
        }

    (found,) = merged_statistics([[entry(2, 100, (1, 2))], [entry(3, 50, (1, 1), (4, 2))]])
    assert found["inference_count"] == 5 and found["last_inference"] == 100
    assert found["inference_stats"]["success"] == {"count": 5, "ns": 50}
    assert [(b["batch_size"], b["compute_infer"]["count"]) for b in found["batch_stats"]] == [
        (1, 3),
        (4, 2),
    ]
    assert len(found["memory_usage"]) == 2
