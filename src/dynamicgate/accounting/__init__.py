"""What a model executes: the MAC counter, measurements, quality metrics, the paper's proxies."""

from dynamicgate.accounting.counter import MacCounter
from dynamicgate.accounting.measurement import Measurement, measure
from dynamicgate.accounting.routing_stats import RoutingStats, measure_routing
from dynamicgate.accounting.tracing import count_macs

__all__ = ["MacCounter", "Measurement", "RoutingStats", "count_macs", "measure", "measure_routing"]
