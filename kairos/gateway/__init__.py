"""HTTP in: the server, the API of clients, who may call, the operators' port and page."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
