"""What the server counts, as Prometheus reads it: requests, errors, latency, batches, the model and its replacements."""

from collections import deque
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

KEPT = 10_000  # requests whose latency gives the quantiles
SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
QUERIES = (1, 2, 4, 8, 16, 32, 64)


class Measures:
    """Counters of one server. Latency is from the first byte of a request's head to its answer, in seconds, of searches that succeed."""

    def __init__(self, queued: Callable[[], float] = lambda: 0) -> None:
        self._registry = CollectorRegistry()
        new = {"registry": self._registry}
        self._requests = Counter("retemper_requests", "Requests by endpoint and status.", ["endpoint", "status"], **new)
        self._errors = Counter("retemper_errors", "Requests that failed: status 500 and above.", ["endpoint"], **new)
        self._latency = Histogram("retemper_request_seconds", "Time to answer a search.", buckets=SECONDS, **new)
        self._quantiles = Gauge(
            "retemper_latency_seconds", f"Latency of the last {KEPT:,} searches, by quantile.", ["quantile"], **new
        )
        self._batches = Histogram("retemper_batch_queries", "Queries searched together.", buckets=QUERIES, **new)
        self._swaps = Counter("retemper_swaps", "Replacements of the model, by how they ended.", ["result"], **new)
        self._model = Gauge("retemper_model_info", "The model that is served.", ["model"], **new)
        self._unlogged = Counter("retemper_unlogged", "Lines of the query log that could not be written.", **new)
        Gauge("retemper_queued", "Queries that wait.", **new).set_function(queued)
        for quantile in (0.5, 0.99):
            self._quantiles.labels(str(quantile)).set_function(lambda quantile=quantile: self.quantile(quantile))
        for result in ("done", "failed"):
            self._swaps.labels(result)
        self._last: deque[float] = deque(maxlen=KEPT)
        self.count = {"requests": 0, "errors": 0, "swaps": 0}

    def answered(self, endpoint: str, status: int, seconds: float) -> None:
        """A request has been answered."""
        self.count["requests"] += 1
        self._requests.labels(endpoint, str(status)).inc()
        self._errors.labels(endpoint).inc(status >= 500)
        self.count["errors"] += status >= 500
        if endpoint == "/search" and status == 200:
            self._latency.observe(seconds)
            self._last.append(seconds)

    def searched(self, queries: int) -> None:
        """A batch of that many queries has been searched."""
        self._batches.observe(queries)

    def swapped(self, result: str) -> None:
        """The model was replaced (`done`), or could not be (`failed`)."""
        self._swaps.labels(result).inc()
        self.count["swaps"] += result == "done"

    def unlogged(self) -> None:
        """A line of the query log could not be written."""
        self._unlogged.inc()

    def quantile(self, part: float) -> float:
        """The latency, in seconds, that `part` of the last searches did not exceed (nearest rank); NaN before the first."""
        known = sorted(self._last)
        return known[max(0, -int(-part * len(known) // 1) - 1)] if known else float("nan")

    def text(self, model: str) -> bytes:
        """Everything in Prometheus's text format."""
        self._model.clear()
        self._model.labels(model).set(1)
        return generate_latest(self._registry)

    def summary(self) -> str:
        """One line for the log."""
        told = ", ".join(f"{count:,} {name}" for name, count in self.count.items())
        quantiles = ", ".join(f"p{100 * part:g} {1000 * self.quantile(part):.1f} ms" for part in (0.5, 0.99)) if self._last else ""
        return f"{told}{f', {quantiles}' if quantiles else ''}"
