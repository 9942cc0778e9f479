"""Deciding processes: this one, workers of a host, or a pool over Kafka.

One interface of control with an implementation for each, the bus with its messages and topics, who
takes over from a dead balancer, and changes of settings in a running service.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
