from __future__ import annotations

from warpplan.service.metrics import Metrics


def test_large_sums_keep_their_digits() -> None:
    metrics = Metrics()
    for _ in range(2):
        metrics.add("warpplan_requests_total", 61_728_395, method="GET", route="/x", status="200")
    assert 'warpplan_requests_total{method="GET",route="/x",status="200"} 123456790\n' in metrics.text()


def test_label_values_are_escaped() -> None:
    metrics = Metrics()
    metrics.add("warpplan_answers_total", match='a"b\\c\nd')
    assert 'warpplan_answers_total{match="a\\"b\\\\c\\nd"} 1\n' in metrics.text()
