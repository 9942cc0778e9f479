"""Runtime of agents on the bus, and their calls of models.

An application's agents consume inboxes, call a model by HTTP or over the bus, and send on. Users'
programs import `kairos.agent`, not this.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
