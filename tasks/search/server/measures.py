"""The server's metrics, for Prometheus: requests, errors, latency, batches, the model and its replacements."""

import math
from collections import deque
from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

QUANTILES = (0.5, 0.99)
KEPT = 10_000  # latest searches whose latencies give the quantiles
SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
QUERIES = (1, 2, 4, 8, 16, 32, 64)


class Measures:
    """The metrics of one server. Latency: seconds from the head of a search request to its answer, for searches that succeed."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self._requests = Counter("retemper_requests", "Requests by endpoint and status.", ["endpoint", "status"], registry=registry)
        self._errors = Counter("retemper_errors", "Requests that failed: status 500 and above.", ["endpoint"], registry=registry)
        self._latency = Histogram("retemper_request_seconds", "Time to answer a search.", buckets=SECONDS, registry=registry)
        self._quantiles = Gauge(
            "retemper_latency_seconds", f"Latency of the last {KEPT:,} searches, by quantile.", ["quantile"], registry=registry
        )
        self._batches = Histogram("retemper_batch_queries", "Queries searched together.", buckets=QUERIES, registry=registry)
        self._swaps = Counter("retemper_swaps", "Model replacements, by result.", ["result"], registry=registry)
        self._model = Gauge("retemper_model_info", "The model that is served.", ["model"], registry=registry)
        self._problem = Gauge("retemper_problem", "1 while /health names a problem, else 0.", registry=registry)
        self._unlogged = Counter("retemper_unlogged", "Lines of the query log that could not be written.", registry=registry)
        self._queued = Gauge("retemper_queued", "Queries waiting to be searched.", registry=registry)
        for quantile in QUANTILES:
            self._quantiles.labels(str(quantile)).set_function(partial(self.quantile, quantile))
        for result in ("done", "failed"):
            self._swaps.labels(result)
        self._last: deque[float] = deque(maxlen=KEPT)
        self.count = {"requests": 0, "errors": 0, "swaps": 0}
        self.lost = 0  # lines of the query log that could not be written

    def queued(self, waiting: Callable[[], float]) -> None:
        """Set the function that returns the number of queries that wait."""
        self._queued.set_function(waiting)

    def answered(self, endpoint: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self.count["requests"] += 1
        self._requests.labels(endpoint, str(status)).inc()
        self._errors.labels(endpoint).inc(status >= 500)
        self.count["errors"] += status >= 500
        if endpoint == "/search" and status == 200:
            self._latency.observe(seconds)
            self._last.append(seconds)

    def searched(self, queries: int) -> None:
        """Count a batch of `queries` queries that was searched."""
        self._batches.observe(queries)

    def swapped(self, result: str) -> None:
        """Count a replacement of the model: `done` or `failed`."""
        self._swaps.labels(result).inc()
        self.count["swaps"] += result == "done"

    def unlogged(self) -> None:
        """Count a line of the query log that could not be written."""
        self._unlogged.inc()
        self.lost += 1

    def quantile(self, part: float) -> float:
        """The quantile `part` of the latency of the last searches, in seconds (nearest rank); NaN before the first."""
        latencies = sorted(self._last)
        return latencies[max(1, math.ceil(part * len(latencies))) - 1] if latencies else float("nan")

    def text(self, model: str, *, problem: bool) -> bytes:
        """All metrics in Prometheus's text format."""
        self._model.clear()
        self._model.labels(model).set(1)
        self._problem.set(problem)
        return generate_latest(self._registry)

    def summary(self) -> str:
        """One line for the log."""
        counts = ", ".join(f"{count:,} {name}" for name, count in self.count.items())
        quantiles = ", ".join(f"p{100 * part:g} {1000 * self.quantile(part):.1f} ms" for part in QUANTILES) if self._last else ""
        return f"{counts}{f', {quantiles}' if quantiles else ''}"
