"""HTTP in: the server, OpenAI's and Anthropic's API, access and the operators' routes and page.

Connections and their limits, TLS and hosts of the ports, who a key or a token belongs to and what
it may do, errors in the client's dialect, and the data behind the operators' page.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
