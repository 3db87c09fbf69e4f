"""Read histograms from `/metrics`."""

from collections import Counter
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True, slots=True)
class Histogram:
    count: int
    buckets: dict[float, int]
    """Cumulative counts by upper bound in seconds."""

    def __add__(self, other: "Histogram") -> "Histogram":
        return Histogram(self.count + other.count, dict(Counter(self.buckets) + Counter(other.buckets)))

    def bound(self, share: float) -> float | None:
        """Return the smallest bucket bound that covers this share; None if nothing was counted."""
        enough = (bound for bound, held in sorted(self.buckets.items()) if held >= share * self.count)
        return next(enough, None) if self.count else None


def nothing() -> Histogram:
    return Histogram(0, {})


def histogram(text: str, name: str) -> Histogram:
    """Sum a histogram over all labels; a missing histogram counts as empty."""
    count, buckets = 0, Counter[float]()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == f"{name}_count":
                count += int(sample.value)
            elif sample.name == f"{name}_bucket":
                buckets[float(sample.labels["le"])] += int(sample.value)
    return Histogram(count, dict(buckets))
